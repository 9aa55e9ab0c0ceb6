/// Every row of architectures() in the arrangements that split its layers, against one process: windows, caps, norms of
/// queries and keys, scaled positions, shared and dense layers among experts.

#include <gtest/gtest.h>

#include "caravan/formats/huggingface/architectures/architecture_row.h"
#include "caravan/prove/prove.h"
#include "caravan/techniques/make_strategy.h"
#include "tests/prove/expect_holds.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::architectures_test {
namespace {

ModelConfig small_model(const ArchitectureRow& row) {
  ModelConfig whole;
  set_architecture(whole, row);
  const bool is_ungrouped = row.name == "gpt2" || row.name == "bloom" || row.name == "bert" || row.name == "t5";
  whole.kv_heads = is_ungrouped ? 0 : 3;
  if (row.base.has_encoder()) {
    whole.encoder_layers = 2;
    whole.source_context = whole.context;
  }
  whole.tie_embeddings = false;
  if (whole.window > 0) whole.window = 3 * whole.context / 8;  // shorter than the context of a proof
  if (row.base.moe.is_used()) {
    whole.moe.experts = 4;
    whole.moe.top_k = 2;
  }
  if (row.base.moe.shared_gate) whole.moe.shared_hidden = 9;
  if (row.name == "qwen3_moe") whole.moe.dense_layers = LayerSet::every(2);
  if (row.name == "llama") {
    whole.rope_scaling = {.kind = RopeScalingKind::llama3, .factor = 4, .original_context = 4, .high_frequency = 3};
  }
  if (row.name == "mistral")
    whole.rope_scaling = {.kind = RopeScalingKind::dynamic, .factor = 3, .original_context = 4};
  if (row.name == "qwen2") whole.rope_scaling = {.kind = RopeScalingKind::yarn, .factor = 3, .original_context = 4};
  if (row.name == "qwen3") whole.own_head_width = 128;
  if (row.name == "phi3") {
    whole.rope_scaling = {.kind = RopeScalingKind::longrope,
                          .factor = 2,
                          .original_context = 6,
                          .short_factors = {1, 2},
                          .long_factors = {3, 4}};
  }
  if (whole.moe.is_used()) whole.moe.balance_loss = 0;
  ModelConfig small = shrunken(whole);
  if (row.name == "phi3") small.rope_scaling.original_context = 7;  // a piece of a ring has no later position
  return small;
}

struct Arranged {
  const char* name;
  StrategyChoice choice{};
  std::vector<AxisSize> axes{};
};

std::vector<Arranged> arrangements() {
  const auto tensor = [](int64_t degree, bool has_sequence) {
    StrategyChoice choice;
    choice.tensor_parallel = tensor_of(degree, "1d", {{"sequence", has_sequence}});
    return choice;
  };
  StrategyChoice pipeline;
  pipeline.pipeline = pipeline_of("1f1b", 2, 1);
  StrategyChoice zero3;
  zero3.data_parallel = technique_of("zero3");
  StrategyChoice ring, exchange;
  ring.context_parallel = context_of("ring", 2);
  exchange.context_parallel = context_of("ulysses", 2);
  StrategyChoice grid;
  grid.tensor_parallel = tensor_of(4, "2d");
  return {{"tp 2", tensor(2, false), {{"dp", 1}, {"tp", 2}}},
          {"tp 4 with sequence", tensor(4, true), {{"dp", 1}, {"tp", 4}}},
          {"grid", grid, {{"dp", 1}, {"tp", 4}}},
          {"pp 2", pipeline, {{"pp", 2}, {"dp", 1}}},
          {"zero3", zero3, {{"dp", 2}}},
          {"ring", ring, {{"dp", 1}, {"cp", 2}}},
          {"ulysses", exchange, {{"dp", 1}, {"cp", 2}}}};
}

class Architectures : public ::testing::TestWithParam<std::string> {};

TEST_P(Architectures, MatchOneProcess) {
  const ModelConfig model = small_model(*find_architecture(GetParam()));
  int num_proved = 0;
  for (const Arranged& arranged : arrangements()) {
    StrategyChoice choice = arranged.choice;
    choice.sequences = 2;
    // Refused with a message: see the tests of each technique.
    if (choice.tensor_parallel.misfit(model) || choice.context_parallel.misfit(model)) continue;
    ++num_proved;
    for (const bool has_documents : {false, true}) {
      expect_holds(
          {.name = GetParam() + ", " + arranged.name,
           .model = model,
           .axes = arranged.axes,
           .arrange = [choice](Model& built, Mesh& mesh) { return Arrangement(make_strategy(choice, built, mesh)); },
           .num_micro_batches = 2,
           .has_documents = has_documents,
           .dtype = at::kFloat,
           .tolerance = 2e-5,  // fp32: post norms divide small sums
           .num_steps = 2,
           .lr = 0.1});
    }
  }
  EXPECT_GE(num_proved, 3);
}

/// Heads of classes, tied heads, and what stages share, beside the rows as they are.
struct Variant {
  const char* name;
  const char* row;
  void (*change)(ModelConfig& model);
  StrategyChoice choice{};
  std::vector<AxisSize> axes{};
};

std::vector<Variant> variants() {
  StrategyChoice tensor, sequence, exchange, pipeline, both, zero3;
  tensor.tensor_parallel = tensor_of(2, "1d", {{"sequence", false}});
  sequence.tensor_parallel = tensor_of(2, "1d", {{"sequence", true}});
  exchange.context_parallel = context_of("ulysses", 2);
  pipeline.pipeline = pipeline_of("1f1b", 4, 1);
  both.tensor_parallel = tensor.tensor_parallel;
  both.pipeline = pipeline_of("1f1b", 2, 1);
  zero3.data_parallel = technique_of("zero3");
  const auto of_classes = [](ModelConfig& model) { model.classes = 5; };
  const auto is_tied = [](ModelConfig& model) { model.tie_embeddings = true; };
  // Three stages of four have layers of the encoder, and three of the decoder: all with the same two tables.
  const auto is_deep = [](ModelConfig& model) {
    model.tie_embeddings = true;
    model.layers = 6;
    model.encoder_layers = 4;
  };
  const auto has_buckets = [](ModelConfig& model) {
    model.arch.positions = Positions::buckets;
    model.buckets = 6;
    model.bucket_distance = 5;
  };
  return {{"bert_of_classes_tp", "bert", of_classes, tensor, {{"dp", 1}, {"tp", 2}}},
          {"bert_of_classes_sequence", "bert", of_classes, sequence, {{"dp", 1}, {"tp", 2}}},
          {"bert_of_classes_zero3", "bert", of_classes, zero3, {{"dp", 3}}},
          {"llama_of_classes_sequence", "llama", of_classes, sequence, {{"dp", 1}, {"tp", 2}}},
          {"llama_of_classes_exchange", "llama", of_classes, exchange, {{"dp", 1}, {"cp", 2}}},
          {"bert_tied_tp", "bert", is_tied, sequence, {{"dp", 1}, {"tp", 2}}},
          {"bert_tied_pp", "bert", is_tied, both, {{"pp", 2}, {"dp", 1}, {"tp", 2}}},
          {"bert_buckets_exchange", "bert", has_buckets, exchange, {{"dp", 1}, {"cp", 2}}},
          {"t5_tied_zero3", "t5", is_tied, zero3, {{"dp", 3}}},
          {"t5_tied_tp_pp", "t5", is_tied, both, {{"pp", 2}, {"dp", 1}, {"tp", 2}}},
          {"t5_deep_pp", "t5", is_deep, pipeline, {{"pp", 4}, {"dp", 1}}}};
}

class Variants : public ::testing::TestWithParam<Variant> {};

TEST_P(Variants, MatchOneProcess) {
  const Variant& variant = GetParam();
  ModelConfig model = small_model(*find_architecture(variant.row));
  variant.change(model);
  StrategyChoice choice = variant.choice;
  choice.sequences = 2;
  for (const bool has_documents : {false, true}) {
    expect_holds(
        {.name = variant.name,
         .model = model,
         .axes = variant.axes,
         .arrange = [choice](Model& built, Mesh& mesh) { return Arrangement(make_strategy(choice, built, mesh)); },
         .num_micro_batches = 2,
         .has_documents = has_documents,
         .dtype = at::kFloat,
         .tolerance = 2e-5,  // fp32, as above
         .num_steps = 2,
         .lr = 0.1});
  }
}

INSTANTIATE_TEST_SUITE_P(, Variants, ::testing::ValuesIn(variants()),
                         [](const auto& info) { return std::string(info.param.name); });

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const ArchitectureRow& row : architectures()) all.push_back(row.name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(, Architectures, ::testing::ValuesIn(names()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace caravan::testing::architectures_test

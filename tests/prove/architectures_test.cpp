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
  whole.kv_heads = row.name == "gpt2" || row.name == "bloom" ? 0 : 3;
  whole.tie_embeddings = false;
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
  for (const Arranged& arranged : arrangements()) {
    StrategyChoice choice = arranged.choice;
    choice.sequences = 2;
    if (choice.tensor_parallel.misfit(model)) continue;  // refused with a message: see the tests of each technique
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
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const ArchitectureRow& row : architectures()) all.push_back(row.name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(, Architectures, ::testing::ValuesIn(names()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace caravan::testing::architectures_test

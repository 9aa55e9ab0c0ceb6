/// Pipelines against one process: every schedule with a flush x stages x micro-batches x model x recompute, with every
/// data-parallel technique and every way of splitting layers. CI runs a cover: all pairs of the first product, most of
/// the others. The full product takes minutes: --gtest_also_run_disabled_tests.

#include <algorithm>

#include <gtest/gtest.h>

#include "caravan/prove/prove.h"
#include "caravan/recipe/recipe.h"
#include "caravan/registry/registry.h"
#include "caravan/techniques/make_strategy.h"
#include "tests/prove/expect_holds.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::pipeline_test {
namespace {

/// Schedules in which all stages update at the end of a step.
std::vector<std::string> flush_schedules() {
  std::vector<std::string> names = names_of("pipeline");
  std::erase_if(names, [](const std::string& name) { return pipeline_of(name).is_asynchronous(); });
  return names;
}

struct Case {
  StrategyChoice choice{};
  Architecture arch = Architecture::gpt2();  ///< gpt2 with tied embeddings, llama without
  int micro_batches = 4;
  std::vector<AxisSize> others{};  ///< other than pp
  std::string beside{};
  at::ScalarType dtype = at::kDouble;
};

/// One layer more than there are stages: they are unlike.
ProveCase to_prove(Case of) {
  const PipelineChoice& pipeline = of.choice.pipeline;
  ModelConfig model = shrunken({.arch = of.arch, .tie_embeddings = of.arch == Architecture::gpt2()});
  model.kv_heads = of.arch == Architecture::llama() ? 2 : 0;
  model.dropout = of.arch == Architecture::gpt2() ? 0.1 : 0;  // other kernels, and no ring
  model.layers = pipeline.num_stages() + 1;
  model.hidden = 32;
  model.context = 16;
  if (of.choice.expert_parallel.is_used()) model.moe = {.experts = 4, .top_k = 2, .balance_loss = 0.1};
  const int64_t parts = of.choice.tensor_parallel.parts().rows * of.choice.expert_parallel.parts().rows;
  of.choice.sequences = 2 * parts;
  std::vector<AxisSize> axes{{"pp", static_cast<int>(pipeline.degree)}};
  if (of.others.empty()) of.others = {{"dp", 1}};
  axes.insert(axes.end(), of.others.begin(), of.others.end());
  const std::string recompute = of.choice.recompute.name();
  return {.name = pipeline.name() + (of.beside.empty() ? "" : " beside " + of.beside) + ", recompute " + recompute,
          .model = model,
          .axes = axes,
          .arrange = [choice = of.choice](Model& built,
                                          Mesh& mesh) { return Arrangement(make_strategy(choice, built, mesh)); },
          .num_micro_batches = of.micro_batches,
          .rows = of.choice.sequences * of.micro_batches * of.others.front().size,
          .dtype = of.dtype,
          // Sums in another order grow through nine layers in three steps: 1.4e-5 on an AMD with AVX-512.
          .tolerance = of.dtype == at::kDouble ? 1e-12 : 3e-5,
          .lr = 0.05};  // nine layers grow a difference of the last bit fortyfold in three steps of 0.1
}

/// Every `stride`-th case. The stride has no factor in common with any setting's number of values.
void expect_every(const std::vector<Case>& cases, size_t stride) {
  for (size_t i = 0; i < cases.size(); i += stride) expect_holds(to_prove(cases[i]));
  ::testing::Test::RecordProperty("cases", static_cast<int>((cases.size() + stride - 1) / stride));
}

std::vector<Case> product() {
  std::vector<Case> all;
  for (const std::string& schedule : flush_schedules()) {
    for (const int stages : {2, 3, 4}) {
      for (const int micro_batches : {1, 4, 7}) {
        for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
          for (const char* recompute : {"none", "selective", "full", "stage"}) {
            for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
              Case one{.choice = {.pipeline = pipeline_of(schedule, stages)},
                       .arch = kind,
                       .micro_batches = micro_batches,
                       .dtype = dtype};
              one.choice.recompute = recompute_of(recompute);
              // Interleaved pipelines take groups of as many micro-batches as there are ranks.
              if (schedule == "interleaved") one.micro_batches = stages * ((micro_batches + stages - 1) / stages);
              all.push_back(one);
            }
          }
        }
      }
    }
  }
  return all;
}

TEST(FlushSchedules, MatchOneProcess) { expect_every(product(), 19); }
TEST(FlushSchedules, DISABLED_AreOneProcessInTheFullProduct) { expect_every(product(), 1); }

std::vector<Case> beside_data() {
  std::vector<Case> all;
  const std::vector<Setting> choices{
      technique_of("ddp"),
      technique_of("zero1", {{"share", "off"}}),
      technique_of("zero1", {{"share", "on"}}),
      technique_of("zero2", {{"share", "off"}}),
      technique_of("zero2", {{"accumulate", "full"}, {"share", "on"}}),
      technique_of("zero3", {{"share", "off"}}),
      technique_of("zero3", {{"reshard_after_forward", false}, {"share", "off"}}),
      technique_of("zero3", {{"units", "blocks.*.mlp"}, {"prefetch", 2}, {"accumulate", "full"}, {"share", "off"}}),
      technique_of("zero3",
                   {{"reshard_after_forward", false}, {"prefetch", 0}, {"accumulate", "full"}, {"share", "off"}}),
      technique_of("zero3", {{"share", "on"}}),
      technique_of("param_server", {{"share", "off"}, {"servers", 1}}),
      technique_of("hsdp", {{"shard", 2}, {"share", "off"}}),
  };
  for (const Setting& data : choices) {
    for (const std::string& schedule : flush_schedules()) {
      for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
        for (const char* recompute : {"none", "full", "stage"}) {
          Case one{.choice = {.data_parallel = data, .pipeline = pipeline_of(schedule, 2)},
                   .arch = kind,
                   .others = {{"dp", data.name() == "hsdp" ? 4 : 2}},
                   .beside = data.name()};
          one.choice.recompute = recompute_of(recompute);
          all.push_back(one);
        }
      }
    }
  }
  return all;
}

TEST(PipelineBesideData, MatchesOneProcess) { expect_every(beside_data(), 13); }
TEST(PipelineBesideData, DISABLED_IsOneProcessInTheFullProduct) { expect_every(beside_data(), 1); }

struct SplitCase {
  std::string name;
  Split tensor = tensor_of(1);
  Split context = context_of("ring", 1);
  Split experts = experts_of(1);
};

std::vector<Case> beside_splits() {
  const std::vector<SplitCase> splits{
      {"tp2", tensor_of(2)},
      {"tp2 and sequence", tensor_of(2, "1d", {{"sequence", true}})},
      {"2d", tensor_of(4, "2d")},
      {"3d", tensor_of(8, "3d")},
      {"ring", tensor_of(1), context_of("ring", 2)},
      {"ulysses", tensor_of(1), context_of("ulysses", 2)},
      {"ring, tp2 and sequence", tensor_of(2, "1d", {{"sequence", true}}), context_of("ring", 2)},
      {"experts", tensor_of(1), context_of("ring", 1), experts_of(2)},
      {"experts and tp2", tensor_of(2), context_of("ring", 1), experts_of(2)},
  };
  std::vector<Case> all;
  for (const SplitCase& split : splits) {
    for (const char* schedule : {"1f1b", "interleaved", "zb-h1", "zb-v"}) {
      for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
        for (const char* recompute : {"none", "full", "stage"}) {
          for (const char* technique : {"ddp", "zero2", "zero3"}) {
            Case one{.choice = {.data_parallel = with(technique_of(technique), {{"share", "off"}}),
                                .tensor_parallel = split.tensor,
                                .context_parallel = split.context,
                                .expert_parallel = split.experts,
                                .pipeline = pipeline_of(schedule, 2)},
                     .arch = kind,
                     .others = {{"dp", 2}},
                     .beside = split.name + " and " + technique};
            one.choice.recompute = recompute_of(recompute);
            const auto add = [&](const char* axis, int64_t size) {
              if (size > 1) one.others.push_back({axis, static_cast<int>(size)});
            };
            add("ep", split.experts.degree);
            add("cp", split.context.degree);
            add("tp", split.tensor.degree);
            all.push_back(one);
          }
        }
      }
    }
  }
  return all;
}

TEST(PipelineBesideSplits, MatchesOneProcess) { expect_every(beside_splits(), 23); }
TEST(PipelineBesideSplits, DISABLED_IsOneProcessInTheFullProduct) { expect_every(beside_splits(), 1); }

/// What reaches a rank in bf16 is rounded as in one process that takes the same micro-batches.
TEST(FlushSchedules, RoundLikeOneProcess) {
  for (const std::string& schedule : flush_schedules()) {
    ProveCase what = to_prove({.choice = {.pipeline = pipeline_of(schedule, 2)}, .dtype = at::kFloat});
    what.compute_dtype = at::kBFloat16;
    what.tolerance = {};
    SCOPED_TRACE(what.to_string());
    const Proof proof = prove(what);
    EXPECT_TRUE(proof.holds()) << proof.to_string();
  }
}

/// dp 2 x tp 2 x pp 2, as a recipe says it: sequence parallel, full recompute, 4 micro-batches.
TEST(ProveCaseOfPipelines, HoldsFromTheRecipe) {
  needs({"zero1", "zero2", "zero3", "recompute_full", "zb-h1", "tensor_1d"});
  for (const char* technique : {"zero1", "zero2", "zero3"}) {
    const ProveCase what = prove_case(parse_recipe(
        "", "r",
        {"mesh.pp=2", "mesh.tp=2", "mesh.dp=2", "tensor_parallel.sequence=true", "memory.recompute=full",
         "train.global_batch=16", std::string("data_parallel.technique=") + technique, "pipeline.schedule=zb-h1"}));
    SCOPED_TRACE(what.to_string());
    const Proof proof = prove(what);
    EXPECT_TRUE(proof.holds()) << proof.to_string();
    EXPECT_EQ(proof.num_ranks, 8);
  }
}

}  // namespace
}  // namespace caravan::testing::pipeline_test

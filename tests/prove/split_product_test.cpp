/// Every way of splitting layers and sequences x model x tied or not x dtype x other techniques. The whole product
/// takes minutes: --gtest_also_run_disabled_tests. The suite of each technique has its own cover in CI.

#include <algorithm>

#include <gtest/gtest.h>

#include "caravan/prove/prove.h"
#include "caravan/recipe/recipe.h"
#include "caravan/techniques/make_strategy.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::split_product_test {
namespace {

struct SplitCase {
  std::string name;
  Split tensor = tensor_of(1);
  Split context = context_of("ring", 1);
  RowNeeds needs{};

  int64_t ranks() const { return tensor.degree * context.degree; }
};

void PrintTo(const SplitCase& split, std::ostream* out) { *out << split.name; }

const std::vector<SplitCase>& splits() {
  static const std::vector<SplitCase> all{
      {"tp2", tensor_of(2)},
      {"tp2_sequence", tensor_of(2, "1d", {{"sequence", true}})},
      {"tp3", tensor_of(3)},
      {"tp3_sequence", tensor_of(3, "1d", {{"sequence", true}})},
      {"tp4", tensor_of(4)},
      {"grid_2d", tensor_of(4, "2d")},
      {"grid_25d", tensor_of(8, "2.5d", {{"depth", 2}})},
      {"grid_3d", tensor_of(8, "3d")},
      {"ring2", tensor_of(1), context_of("ring", 2)},
      {"ring3", tensor_of(1), context_of("ring", 3)},
      {"ring4", tensor_of(1), context_of("ring", 4)},
      {"ulysses2", tensor_of(1), context_of("ulysses", 2)},
      {"ulysses4", tensor_of(1), context_of("ulysses", 4)},
      {"both4", tensor_of(1), context_of("both", 4, {{"exchange", 2}})},
      {"tp2_sequence_ring2", tensor_of(2, "1d", {{"sequence", true}}), context_of("ring", 2)},
      {"tp2_ulysses2", tensor_of(2), context_of("ulysses", 2)},
      {"tp4_groups_ring2", tensor_of(4, "1d", {{"sequence", true}}), context_of("ring", 2)},
      {"grid_2d_ring2", tensor_of(4, "2d"), context_of("ring", 2)},
  };
  return all;
}

ModelConfig model_of(const SplitCase& split, Architecture kind, bool is_tied) {
  const bool has_three = split.ranks() == 3;
  ModelConfig model = shrunken({.arch = kind, .tie_embeddings = is_tied});
  model.dropout = is_tied ? 0.1 : 0;  // other kernels, and no ring
  model.heads = has_three ? 6 : 4;
  model.kv_heads = kind == Architecture::llama() ? model.heads / 2 : 0;
  model.width = 4 * model.heads;
  model.hidden = 32;
  model.context = has_three ? 12 : 16;
  return model;
}

ProveCase case_of(const SplitCase& split, Architecture kind, bool is_tied, at::ScalarType dtype, const char* beside,
                  int dp) {
  StrategyChoice choice{.data_parallel = with(technique_of(beside), {{"share", "off"}}),
                        .tensor_parallel = split.tensor,
                        .context_parallel = split.context,
                        .overlap = std::string(beside) != "zero3"};
  choice.sequences = split.tensor.parts().rows;
  std::vector<AxisSize> axes{{"dp", dp}};
  if (split.context.is_used()) axes.push_back({"cp", static_cast<int>(split.context.degree)});
  if (split.tensor.is_used()) axes.push_back({"tp", static_cast<int>(split.tensor.degree)});
  return {.name = split.name + " beside " + beside,
          .model = model_of(split, kind, is_tied),
          .axes = axes,
          .arrange = [choice](Model& model, Mesh& mesh) { return Arrangement(make_strategy(choice, model, mesh)); },
          .num_micro_batches = 2,
          .rows = 2 * dp * split.tensor.parts().rows,
          .dtype = dtype,
          .tolerance = dtype == at::kDouble ? 1e-12 : 1e-5};
}

class SplitProduct : public ::testing::TestWithParam<SplitCase> {};
INSTANTIATE_TEST_SUITE_P(Kinds, SplitProduct, ::testing::ValuesIn(splits()),
                         [](const auto& info) { return info.param.name; });

TEST_P(SplitProduct, DISABLED_IsOneProcess) {
  GetParam().needs.check();
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    for (const bool is_tied : {true, false}) {
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
        for (const auto& [beside, dp] : {std::pair("ddp", 1), std::pair("ddp", 2), std::pair("zero3", 2)}) {
          const ProveCase what = case_of(GetParam(), kind, is_tied, dtype, beside, dp);
          SCOPED_TRACE(what.to_string());
          const Proof proof = prove(what);
          EXPECT_TRUE(proof.holds()) << proof.to_string();
        }
      }
    }
  }
}

/// From a recipe's names to a step: one case of each split, with each of the other settings in turn.
TEST_P(SplitProduct, HoldsForOneOfEach) {
  GetParam().needs.check();
  const auto number = std::ranges::find(splits(), GetParam().name, &SplitCase::name) - splits().begin();
  const Architecture kind = number % 2 == 0 ? Architecture::gpt2() : Architecture::llama();
  const ProveCase what = case_of(GetParam(), kind, number % 3 == 0, number % 4 < 2 ? at::kDouble : at::kFloat,
                                 number % 3 == 1 ? "zero3" : "ddp", number % 3 == 2 ? 1 : 2);
  SCOPED_TRACE(what.to_string());
  const Proof proof = prove(what);
  EXPECT_TRUE(proof.holds()) << proof.to_string();
}

/// A recipe is proved with a smaller mesh of the same kind and the same way of sharing heads.
TEST(ProveCaseOfSplits, KeepsTheKind) {
  struct Case {
    std::vector<std::string> set;
    int tp;
    int64_t kv_heads;
  };
  const std::vector<std::string> llama{"model.kind=llama", "model.heads=8", "model.width=64", "train.global_batch=16"};
  const std::vector<Case> cases{
      {{"mesh.tp=16", "tensor_parallel.kind=2d", "model.heads=16"}, 4, 0},
      {{"mesh.tp=8", "tensor_parallel.kind=2.5d"}, 8, 0},
      {{"mesh.tp=8", "tensor_parallel.kind=3d", "model.hidden=64"}, 8, 0},
      {{"mesh.tp=8", "model.kv_heads=2", "mesh.cp=2"}, 4, 2},
      {{"mesh.tp=2", "model.kv_heads=1", "mesh.cp=2"}, 2, 1},
  };
  for (const Case& each : cases) {
    std::vector<std::string> set = llama;
    set.insert(set.end(), each.set.begin(), each.set.end());
    needs_chosen(set);
    const ProveCase what = prove_case(parse_recipe("", "r", set));
    SCOPED_TRACE(what.to_string());
    EXPECT_EQ(what.axes.back().name, "tp");
    EXPECT_EQ(what.axes.back().size, each.tp);
    EXPECT_EQ(what.model.kv_heads, each.kv_heads);
    const Proof proof = prove(what);
    EXPECT_TRUE(proof.holds()) << proof.to_string();
  }
}

}  // namespace
}  // namespace caravan::testing::split_product_test

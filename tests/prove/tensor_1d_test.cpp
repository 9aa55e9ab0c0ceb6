#include "caravan/techniques/tensor/tensor_1d.h"

#include <array>

#include <gtest/gtest.h>

#include "caravan/prove/prove.h"
#include "caravan/techniques/make_strategy.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::tensor_1d_test {
namespace {

struct Variant {
  std::string name;
  std::vector<AxisSize> axes;
  bool sequence = false;
  Setting data_parallel{"data_parallel"};
  Setting recompute{"recompute"};
  int64_t heads = 4;
  int64_t kv_heads = 2;  ///< of Llama
  RowNeeds needs{};
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all{
      {"tp1", {{"dp", 1}, {"tp", 1}}},
      {"tp2", {{"dp", 1}, {"tp", 2}}},
      {"tp2_sequence", {{"dp", 1}, {"tp", 2}}, true},
      {"tp3", {{"dp", 1}, {"tp", 3}}, false, technique_of("ddp"), recompute_of("none"), 6, 3},
      {"tp3_sequence", {{"dp", 1}, {"tp", 3}}, true, technique_of("ddp"), recompute_of("none"), 6, 3},
      {"tp4_groups", {{"dp", 1}, {"tp", 4}}},
      {"tp4_groups_sequence", {{"dp", 1}, {"tp", 4}}, true},
      {"tp2_unequal_sharing", {{"dp", 1}, {"tp", 2}}, false, technique_of("ddp"), recompute_of("none"), 6, 3},
      {"tp3_one_kv_head", {{"dp", 1}, {"tp", 3}}, true, technique_of("ddp"), recompute_of("none"), 6, 1},
      {"tp2_unequal_heads", {{"dp", 1}, {"tp", 2}}, false, technique_of("ddp"), recompute_of("none"), 9, 3},
      {"tp3_unequal_heads_sequence", {{"dp", 1}, {"tp", 3}}, true, technique_of("ddp"), recompute_of("none"), 5, 5},
      {"zero3_tp4_unequal_heads",
       {{"dp", 2}, {"tp", 4}},
       false,
       technique_of("zero3", {{"share", "off"}}),
       recompute_of("full"),
       7,
       7},
      {"dp2_tp2", {{"dp", 2}, {"tp", 2}}},
      {"dp2_tp2_sequence", {{"dp", 2}, {"tp", 2}}, true},
      {"zero1_tp2", {{"dp", 2}, {"tp", 2}}, false, technique_of("zero1", {{"share", "off"}})},
      {"zero3_tp2_sequence", {{"dp", 2}, {"tp", 2}}, true, technique_of("zero3", {{"share", "off"}})},
      {"zero3_tp2_shared", {{"dp", 2}, {"tp", 2}}, false, technique_of("zero3", {{"share", "on"}})},
      {"zero3_tp4_groups", {{"dp", 2}, {"tp", 4}}, true, technique_of("zero3", {{"share", "off"}})},
      {"recompute", {{"dp", 1}, {"tp", 2}}, true, technique_of("ddp"), recompute_of("full")},
  };
  return all;
}

ModelConfig model_of(const Variant& variant, Architecture kind, bool is_tied) {
  ModelConfig model = shrunken({.arch = kind, .tie_embeddings = is_tied});
  model.dropout = is_tied ? 0.1 : 0;  // other kernels
  model.heads = variant.heads;
  model.kv_heads = kind == Architecture::llama() ? variant.kv_heads : 0;
  model.width = 4 * variant.heads;
  model.hidden = 26;  // divides by 2 only
  model.context = 12;
  return model;
}

/// Dtypes of the sharded parameters and of the arithmetic: fp64, fp32, bf16.
constexpr std::array<std::pair<at::ScalarType, at::ScalarType>, 3> kDtypes{
    {{at::kDouble, at::kFloat}, {at::kFloat, at::kFloat}, {at::kFloat, at::kBFloat16}}};

class Tensor1d : public ::testing::TestWithParam<Variant> {};

INSTANTIATE_TEST_SUITE_P(Axes, Tensor1d, ::testing::ValuesIn(variants()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Tensor1d, MatchesOneProcess) {
  const Variant& variant = GetParam();
  variant.needs.check();
  size_t which = 0;
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    for (const bool is_tied : {true, false}) {
      const auto& [dtype, compute_dtype] = kDtypes[which++ % kDtypes.size()];
      const StrategyChoice choice{
          .data_parallel = variant.data_parallel,
          .tensor_parallel = tensor_of(variant.axes.back().size, "1d", {{"sequence", variant.sequence}}),
          .sequences = 2,
          .recompute = variant.recompute};
      const bool is_bf16 = compute_dtype == at::kBFloat16;  // few summands: see prove()
      const ProveCase what{
          .name = variant.name,
          .model = model_of(variant, kind, is_tied),
          .axes = variant.axes,
          .arrange = [&](Model& model, Mesh& mesh) { return Arrangement(make_strategy(choice, model, mesh)); },
          .num_micro_batches = is_bf16 ? 1 : 2,
          .rows = is_bf16 ? 2 * variant.axes.front().size : 0,
          .dtype = dtype,
          .compute_dtype = compute_dtype};
      SCOPED_TRACE(what.to_string());
      const Proof proof = prove(what);
      EXPECT_TRUE(proof.holds()) << proof.to_string();
    }
  }
}

}  // namespace
}  // namespace caravan::testing::tensor_1d_test

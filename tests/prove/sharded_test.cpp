/// The sharding techniques against one process, pairwise: technique and its options x model x dtypes x ranks x
/// accumulation. One micro-batch and three, records nothing, since StageRunner follows the strategy's table.

#include <array>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/prove/prove.h"
#include "caravan/recipe/recipe.h"
#include "caravan/techniques/make_strategy.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::sharded_test {
namespace {

struct Variant {
  const char* name;
  Setting choice;
  RowNeeds needs{};
};

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all{
      {"zero1", technique_of("zero1", {{"share", "off"}})},
      {"zero1_shared", technique_of("zero1", {{"prefetch", 2}, {"share", "on"}})},
      {"zero2", technique_of("zero2", {{"prefetch", 0}, {"share", "off"}})},
      {"zero2_full_shared", technique_of("zero2", {{"accumulate", "full"}, {"share", "on"}})},
      {"zero3", technique_of("zero3", {{"share", "off"}})},
      {"zero3_kept", technique_of("zero3", {{"reshard_after_forward", false}, {"prefetch", 0}, {"share", "off"}})},
      {"zero3_small_units", technique_of("zero3", {{"units", "blocks.*.mlp"}, {"prefetch", 2}, {"share", "off"}})},
      {"zero3_full", technique_of("zero3", {{"prefetch", 0}, {"accumulate", "full"}, {"share", "off"}})},
      {"zero3_shared", technique_of("zero3", {{"share", "on"}})},
      {"one_server", technique_of("param_server", {{"share", "off"}, {"servers", 1}})},
      {"servers_shared", technique_of("param_server", {{"accumulate", "full"}, {"share", "on"}})},
      {"replicas", technique_of("replicas")},
      {"hsdp", technique_of("hsdp", {{"shard", 2}, {"share", "off"}})},
      {"hsdp_shared", technique_of("hsdp", {{"shard", 2}, {"accumulate", "full"}, {"share", "on"}})},
  };
  return all;
}

ModelConfig model_of(Architecture kind) {
  const bool is_gpt2 = kind == Architecture::gpt2();
  // With dropout, other kernels are used.
  return shrunken(
      {.arch = kind, .heads = 4, .kv_heads = is_gpt2 ? 0 : 2, .tie_embeddings = is_gpt2, .dropout = is_gpt2 ? 0.1 : 0});
}

/// Dtypes of the sharded parameters and of the arithmetic: fp64, fp32, bf16.
constexpr std::array<std::pair<at::ScalarType, at::ScalarType>, 3> kDtypes{
    {{at::kDouble, at::kFloat}, {at::kFloat, at::kFloat}, {at::kFloat, at::kBFloat16}}};

class Sharded : public ::testing::TestWithParam<Variant> {};

INSTANTIATE_TEST_SUITE_P(Techniques, Sharded, ::testing::ValuesIn(variants()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Sharded, Holds) {
  GetParam().needs.check();
  const Setting& choice = GetParam().choice;
  size_t which = 0;
  for (const int ranks : {1, 2, 3, 4}) {
    if (choice.name() == "hsdp" && ranks != 4) continue;
    for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
      for (const int num_micro_batches : {1, 3}) {
        const auto& [dtype, compute_dtype] = kDtypes[which++ % kDtypes.size()];
        const ProveCase what{.name = GetParam().name,
                             .model = model_of(kind),
                             .axes = {{"dp", ranks}},
                             .arrange =
                                 [&choice](Model& model, Mesh& mesh) {
                                   return Arrangement(make_strategy({.data_parallel = choice}, model, mesh));
                                 },
                             .num_micro_batches = num_micro_batches,
                             .dtype = dtype,
                             .compute_dtype = compute_dtype};
        SCOPED_TRACE(what.to_string());
        const Proof proof = prove(what);
        EXPECT_TRUE(proof.holds()) << proof.to_string();
      }
    }
  }
}

}  // namespace
}  // namespace caravan::testing::sharded_test

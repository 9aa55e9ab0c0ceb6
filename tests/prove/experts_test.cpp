#include <array>

#include <gtest/gtest.h>

#include "caravan/prove/prove.h"
#include "caravan/techniques/make_strategy.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::experts_test {
namespace {

struct Variant {
  std::string name;
  std::vector<AxisSize> axes;
  MoeConfig moe{};
  StrategyChoice choice{};  ///< of what the axes do not say
  Setting recompute{"recompute"};
  bool has_documents = false;
  RowNeeds needs{};

  int64_t degree(const std::string& axis) const {
    for (const AxisSize& each : axes) {
      if (each.name == axis) return each.size;
    }
    return 1;
  }
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

constexpr MoeConfig kPlain{.experts = 4, .z_loss = 1e-2};
constexpr MoeConfig kSigmoid{.experts = 4, .top_k = 3, .gates = Gates::sigmoid, .shared_hidden = 10};
constexpr MoeConfig kGated{.experts = 8, .normalize = false, .shared_hidden = 6, .shared_gate = true};
constexpr MoeConfig kLimited{.experts = 4, .capacity = 0.75, .balance_loss = 0.1};
constexpr MoeConfig kBatch{.experts = 4, .balance = BalanceScope::batch, .balance_loss = 0.1};

StrategyChoice technique(const std::string& name) {
  return {.data_parallel = with(technique_of(name), {{"share", "off"}})};
}

StrategyChoice context(const std::string& kind, const Values& values = {}) {
  return {.context_parallel = context_of(kind, 1, values)};
}

StrategyChoice sequence() { return {.tensor_parallel = tensor_of(1, "1d", {{"sequence", true}})}; }

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all{
      {"dp1", {{"dp", 1}}, kPlain},
      {"dp2", {{"dp", 2}}, kPlain},
      {"dp3_batch", {{"dp", 3}}, kBatch},
      {"ep2", {{"dp", 1}, {"ep", 2}}, kPlain},
      {"ep2_shared", {{"dp", 1}, {"ep", 2}}, kSigmoid},
      {"ep3", {{"dp", 1}, {"ep", 3}}, {.experts = 6, .top_k = 1, .normalize = false}},
      {"ep4", {{"dp", 1}, {"ep", 4}}, kGated},
      {"ep2_limited", {{"dp", 1}, {"ep", 2}}, kLimited},
      {"ep4_batch", {{"dp", 1}, {"ep", 4}}, kBatch},
      {"dp2_ep2", {{"dp", 2}, {"ep", 2}}, kGated},
      {"dp2_ep2_batch", {{"dp", 2}, {"ep", 2}}, kBatch},
      {"zero1_ep2", {{"dp", 2}, {"ep", 2}}, kPlain, technique("zero1")},
      {"zero3_ep2", {{"dp", 2}, {"ep", 2}}, kSigmoid, technique("zero3")},
      {"tp2", {{"dp", 1}, {"tp", 2}}, kPlain},
      {"tp2_sequence_shared", {{"dp", 1}, {"tp", 2}}, kGated, sequence()},
      {"tp4_sequence_limited", {{"dp", 1}, {"tp", 4}}, kLimited, sequence()},
      {"ep2_tp2", {{"dp", 1}, {"ep", 2}, {"tp", 2}}, kGated},
      {"ep2_tp2_sequence", {{"dp", 1}, {"ep", 2}, {"tp", 2}}, kSigmoid, sequence()},
      {"ring2_limited", {{"dp", 1}, {"cp", 2}}, kLimited, context("ring")},
      {"ulysses2", {{"dp", 1}, {"cp", 2}}, kPlain, context("ulysses")},
      {"both4_limited", {{"dp", 1}, {"cp", 4}}, kLimited, context("both", {{"exchange", 2}})},
      {"ep2_ring2", {{"dp", 1}, {"ep", 2}, {"cp", 2}}, kLimited, context("ring"), recompute_of("none"), true},
      {"ep2_ring2_tp2", {{"dp", 1}, {"ep", 2}, {"cp", 2}, {"tp", 2}}, kGated, context("ring")},
      {"tp2_sequence_batch", {{"dp", 1}, {"tp", 2}}, kBatch, sequence()},
      {"ring2_batch", {{"dp", 1}, {"cp", 2}}, kBatch, context("ring")},
      {"zero3_batch", {{"dp", 2}, {"ep", 2}}, kBatch, technique("zero3")},
      {"zero2_ep2", {{"dp", 2}, {"ep", 2}}, kLimited, technique("zero2")},
      {"recompute_ep2", {{"dp", 1}, {"ep", 2}}, kSigmoid, {}, recompute_of("full")},
      {"recompute_batch", {{"dp", 1}, {"ep", 2}}, kBatch, {}, recompute_of("full")},
  };
  return all;
}

ProveCase case_of(const Variant& variant, Architecture kind, at::ScalarType dtype) {
  StrategyChoice choice = variant.choice;
  choice.tensor_parallel.degree = variant.degree("tp");
  if (choice.tensor_parallel.is_used()) needs({"1d"});
  choice.context_parallel.degree = variant.degree("cp");
  choice.expert_parallel = experts_of(variant.degree("ep"));
  choice.recompute = variant.recompute;
  choice.sequences = 2 * variant.degree("ep");
  ProveCase what{
      .name = variant.name,
      .model = shrunken({.arch = kind, .moe = variant.moe}),
      .axes = variant.axes,
      .arrange = [choice](Model& model, Mesh& mesh) { return Arrangement(make_strategy(choice, model, mesh)); },
      .num_micro_batches = 2,
      .rows = 2 * choice.sequences * variant.degree("dp"),
      .has_documents = variant.has_documents,
      .dtype = dtype,
      .tolerance = dtype == at::kDouble ? 1e-12 : 1e-5};
  what.model.hidden = 12;
  what.model.dropout = kind == Architecture::gpt2() ? 0.1 : 0;  // other kernels, and no ring
  what.model.moe.shared_hidden = variant.moe.shared_hidden;
  return what;
}

class ProveExperts : public ::testing::TestWithParam<Variant> {};

INSTANTIATE_TEST_SUITE_P(Axes, ProveExperts, ::testing::ValuesIn(variants()),
                         [](const auto& info) { return info.param.name; });

TEST_P(ProveExperts, MatchesOneProcess) {
  GetParam().needs.check();
  for (const auto& [kind, dtype] :
       {std::pair(Architecture::llama(), at::kDouble), std::pair(Architecture::gpt2(), at::kFloat)}) {
    const ProveCase what = case_of(GetParam(), kind, dtype);
    SCOPED_TRACE(what.to_string());
    const Proof proof = prove(what);
    EXPECT_TRUE(proof.holds()) << proof.to_string();
  }
}

/// Ranks of ep round as one process does: it runs their rows as micro-batches.
TEST(ProveExpertsIn, Bf16) {
  for (const Architecture& kind : {Architecture::llama(), Architecture::gpt2()}) {
    ProveCase what = case_of({"ep2", {{"dp", 1}, {"ep", 2}}, {.experts = 4, .top_k = 4}}, kind, at::kFloat);
    what.compute_dtype = at::kBFloat16;
    what.tolerance = std::nullopt;
    what.model.layers = 1;
    what.num_micro_batches = 1;
    what.rows = 4;
    SCOPED_TRACE(what.to_string());
    const Proof proof = prove(what);
    EXPECT_TRUE(proof.holds()) << proof.to_string();
  }
}

}  // namespace
}  // namespace caravan::testing::experts_test

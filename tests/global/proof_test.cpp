// The proof of rules catches wrong ones.
#include "tests/global/proof.h"

#include <gtest/gtest.h>

#include "caravan/global/operation.h"
#include "caravan/global/rules/rules.h"

namespace caravan::testing::proof_test {
namespace {

/// Failed runs of all samples of the op while its rule is `rule`.
int num_failed(const std::string& op, const Rule& rule) {
  const auto& all = rule_table().all();
  const auto old = all.find(op);
  const Rule before = old == all.end() ? Rule{} : old->second;
  rule_table().add(op, rule);
  int failed = 0;
  for (const OpSample& sample : proof_samples()) {
    const ProofCase proof(sample);
    if (proof.name() != op) continue;
    for (const ProofRun& run : prove(proof, {{"t", 2}}, assignments_on_one_axis(proof, 2, 60, 1))) {
      failed += !run.failure.empty();
    }
  }
  // No rule and one that has none for any call are the same, but for pointwise ops.
  rule_table().add(op, before              ? before
                       : op == "aten::abs" ? Rule([](const OpCall& call) { return pointwise(call); })
                                           : Rule([](const OpCall&) { return std::nullopt; }));
  return failed;
}

/// The rule that the library has; without one, that of an op that runs whole.
Rule rule_of(const std::string& op) {
  const auto found = rule_table().all().find(op);
  return found == rule_table().all().end() ? Rule([](const OpCall&) { return std::nullopt; }) : found->second;
}

TEST(RuleProofItself, catches_a_missing_whole_label) {
  const Rule cuts_all = [](const OpCall& call) {
    TypedCall typed;
    Labels labels;
    typed.inputs = typed.outputs = {labels.of(call.sizes(0))};
    return std::optional(typed);
  };
  EXPECT_EQ(num_failed("aten::_softmax", rule_of("aten::_softmax")), 0);
  EXPECT_GT(num_failed("aten::_softmax", cuts_all), 0);
}

TEST(RuleProofItself, catches_a_bias_that_counts_twice) {
  const Rule twice = [](const OpCall& call) {
    TypedCall typed{{{}, {"m", "k"}, {"k", "n"}}, {{"m", "n"}}, "", {{0, 1, 2}}};
    if (call.num_dims(0) != 2 || call.sizes(0)[0] != call.sizes(1)[0]) return std::optional<TypedCall>();
    for (size_t i = 0; i < 3; ++i) {
      for (const int64_t size : call.sizes(i)) {
        if (size == 1) return std::optional<TypedCall>();
      }
    }
    typed.inputs[0] = {"m", "n"};
    return std::optional(typed);
  };
  EXPECT_EQ(num_failed("aten::addmm", rule_of("aten::addmm")), 0);
  EXPECT_GT(num_failed("aten::addmm", twice), 0);
}

TEST(RuleProofItself, catches_a_sum_that_passes_a_nonlinear_op) {
  const Rule linear = [](const OpCall& call) {
    TypedCall typed = pointwise(call);
    typed.terms = {{0}};
    return std::optional(typed);
  };
  EXPECT_EQ(num_failed("aten::abs", [](const OpCall& call) { return pointwise(call); }), 0);
  EXPECT_GT(num_failed("aten::abs", linear), 0);
}

}  // namespace
}  // namespace caravan::testing::proof_test

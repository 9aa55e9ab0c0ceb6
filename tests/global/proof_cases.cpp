// Proves the rules of global tensors by the recorded calls of ATen ops: each under every placement against the same
// call on plain tensors. CARAVAN_PROOF_OPS="aten::gather,aten::sort" limits it to some ops, CARAVAN_PROOF_VERBOSE=1
// prints all failures and the table. conservative.txt lists the ops that move operands without need;
// CARAVAN_WRITE_DOCS=1 writes its counts.
#include <cstdlib>
#include <iostream>

#include <gtest/gtest.h>

#include "tests/global/proof_list.h"

namespace caravan::testing::proof_cases {
namespace {

constexpr int kNumGroups = 6;

/// The same on every machine, unlike std::hash.
int group_of(const std::string& op) {
  uint32_t hash = 2166136261u;
  for (const char c : op.substr(0, op.find('.'))) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  return static_cast<int>((hash >> 8) % kNumGroups);
}

struct Part {
  int num_ranks;
  int group;
};

/// 2 or 3 ranks on one axis; 4 stands for two axes of 2.
Axes axes_of(int num_ranks) {
  if (num_ranks == 4) return {{"a", 2}, {"b", 2}};
  return {{"t", num_ranks}};
}

class RuleProof : public ::testing::TestWithParam<Part> {};

TEST_P(RuleProof, gives_what_plain_tensors_give) {
  const Part part = GetParam();
  ProofLimits limits;
  limits.tries_pieces = part.num_ranks == 2;
  if (part.num_ranks == 4) limits = {6, 3, false};
  const auto has = [&](const std::string& op) { return group_of(op) == part.group; };
  const auto counts = prove_ops(axes_of(part.num_ranks), limits, has);
  if (std::getenv("CARAVAN_PROOF_VERBOSE") != nullptr && !counts.empty()) std::cout << proof_table(counts);
  if (limits.tries_pieces && std::getenv("CARAVAN_PROOF_OPS") == nullptr) check_conservative(counts, has);
}

std::vector<Part> parts(int num_ranks) {
  std::vector<Part> all;
  for (int group = 0; group < kNumGroups; ++group) all.push_back({num_ranks, group});
  return all;
}

std::string part_name(const ::testing::TestParamInfo<Part>& info) { return "part" + std::to_string(info.param.group); }

INSTANTIATE_TEST_SUITE_P(RuleProofOn2, RuleProof, ::testing::ValuesIn(parts(2)), part_name);
INSTANTIATE_TEST_SUITE_P(RuleProofOn3, RuleProof, ::testing::ValuesIn(parts(3)), part_name);
INSTANTIATE_TEST_SUITE_P(RuleProofOn2x2, RuleProof, ::testing::ValuesIn(parts(4)), part_name);

}  // namespace
}  // namespace caravan::testing::proof_cases

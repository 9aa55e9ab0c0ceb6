#include "tests/comm/backends/hierarchical_ranks.h"
#include "tests/comm/reference.h"
#include "tests/comm/suites.h"

namespace caravan::testing {
namespace {

// A host with one rank, equal hosts, the smaller host first; then one host, and hosts of single ranks.
const auto kCases = ::testing::Values(hierarchical_case<2, 1>(), hierarchical_case<2, 2>(), hierarchical_case<1, 3>());
const auto kOneLevel = ::testing::Values(hierarchical_case<2>(), hierarchical_case<1, 1>());
// Faults wait for time-outs: two arrangements, and hosts of single ranks.
const auto kFaulty = ::testing::Values(hierarchical_case<2, 1>(), hierarchical_case<2, 2>());
const auto kFaultyOneLevel = ::testing::Values(hierarchical_case<1, 1>());
const auto kUniform = ::testing::Values(hierarchical_case<2, 2>());
const auto kInOrder = ::testing::Values(hierarchical_case<2, 1>());

RankCase unchecked() {
  RankCase result = hierarchical_case<2, 1>();
  result.backend = "unchecked_" + result.backend;
  result.run_ranks = run_unchecked_on_hosts<2, 1>;
  return result;
}
const auto kUnchecked = ::testing::Values(unchecked());

/// Everything that ranks do in memory and over connections is the same in threads and in processes. What only processes
/// can get wrong (descriptors that are passed, wake-ups across processes) needs one arrangement.
RankCase processes() {
  RankCase result = hierarchical_case<2, 1>();
  result.run_ranks = run_on_host_processes<2, 1>;
  return result;
}
const auto kProcesses = ::testing::Values(processes());

}  // namespace

INSTANTIATE_TEST_SUITE_P(Hierarchical, Reductions, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Hierarchical, Movement, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Hierarchical, LargeSizes, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Hierarchical, Messages, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Hierarchical, Splits, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Hierarchical, Asynchrony, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Hierarchical, Faults, kFaulty, case_name);
INSTANTIATE_TEST_SUITE_P(Hierarchical, TrafficCounts, kUniform, case_name);
INSTANTIATE_TEST_SUITE_P(Hierarchical, Algorithms, kInOrder, case_name);  // needs sums in rank order

INSTANTIATE_TEST_SUITE_P(OneLevel, Reductions, kOneLevel, case_name);
INSTANTIATE_TEST_SUITE_P(OneLevel, Movement, kOneLevel, case_name);
INSTANTIATE_TEST_SUITE_P(OneLevel, Messages, kOneLevel, case_name);
INSTANTIATE_TEST_SUITE_P(OneLevel, Splits, kOneLevel, case_name);
INSTANTIATE_TEST_SUITE_P(OneLevel, Asynchrony, kOneLevel, case_name);
INSTANTIATE_TEST_SUITE_P(OneLevel, Faults, kFaultyOneLevel, case_name);

INSTANTIATE_TEST_SUITE_P(Processes, Reductions, kProcesses, case_name);
INSTANTIATE_TEST_SUITE_P(Processes, LargeSizes, kProcesses, case_name);
INSTANTIATE_TEST_SUITE_P(Processes, Messages, kProcesses, case_name);

INSTANTIATE_TEST_SUITE_P(UncheckedHierarchical, Reductions, kUnchecked, case_name);
INSTANTIATE_TEST_SUITE_P(UncheckedHierarchical, Movement, kUnchecked, case_name);
INSTANTIATE_TEST_SUITE_P(UncheckedHierarchical, Asynchrony, kUnchecked, case_name);

}  // namespace caravan::testing

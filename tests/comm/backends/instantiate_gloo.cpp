#include "tests/comm/backends/gloo_ranks.h"
#include "tests/comm/suites.h"

namespace caravan::testing {
namespace {

const auto kCases = ::testing::ValuesIn(rank_cases("gloo", {1, 2, 3, 4}, run_gloo_ranks));
// The long suites: what depends on the number of ranks is tested over threads.
const auto kThree = ::testing::ValuesIn(rank_cases("gloo", {3}, run_gloo_ranks));
const auto kSeveral = ::testing::ValuesIn(rank_cases("gloo", {2, 3, 4}, run_gloo_ranks));
const auto kUnchecked = ::testing::ValuesIn(rank_cases("unchecked_gloo", {3}, run_unchecked_gloo_ranks));

}  // namespace

INSTANTIATE_TEST_SUITE_P(Gloo, Reductions, kThree, case_name);
INSTANTIATE_TEST_SUITE_P(Gloo, Movement, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Gloo, LargeSizes, kThree, case_name);
INSTANTIATE_TEST_SUITE_P(Gloo, Messages, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Gloo, Splits, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Gloo, Asynchrony, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Gloo, Faults, kSeveral, case_name);
INSTANTIATE_TEST_SUITE_P(Gloo, Algorithms, kThree, case_name);
INSTANTIATE_TEST_SUITE_P(Gloo, TrafficCounts, kCases, case_name);

INSTANTIATE_TEST_SUITE_P(UncheckedGloo, Reductions, kUnchecked, case_name);
INSTANTIATE_TEST_SUITE_P(UncheckedGloo, Movement, kUnchecked, case_name);
INSTANTIATE_TEST_SUITE_P(UncheckedGloo, Messages, kUnchecked, case_name);
INSTANTIATE_TEST_SUITE_P(UncheckedGloo, Splits, kUnchecked, case_name);
INSTANTIATE_TEST_SUITE_P(UncheckedGloo, Asynchrony, kUnchecked, case_name);

}  // namespace caravan::testing

#include "caravan/comm/thread_ranks.h"
#include "tests/comm/suites.h"

namespace caravan::testing {
namespace {

const auto kCases = ::testing::ValuesIn(rank_cases("thread", {1, 2, 3, 4, 5, 8}, run_thread_ranks));
const auto kUpToFour = ::testing::ValuesIn(rank_cases("thread", {1, 2, 3, 4}, run_thread_ranks));
const auto kSeveral = ::testing::ValuesIn(rank_cases("thread", {2, 3, 4}, run_thread_ranks));

}  // namespace

INSTANTIATE_TEST_SUITE_P(Thread, Reductions, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Thread, Movement, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Thread, LargeSizes, kUpToFour, case_name);
INSTANTIATE_TEST_SUITE_P(Thread, Messages, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Thread, Splits, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Thread, Asynchrony, kUpToFour, case_name);
INSTANTIATE_TEST_SUITE_P(Thread, Faults, kSeveral, case_name);
INSTANTIATE_TEST_SUITE_P(Thread, Algorithms, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Thread, TrafficCounts, kCases, case_name);

}  // namespace caravan::testing

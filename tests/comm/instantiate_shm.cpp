#include "tests/comm/suites.h"
#include "tests/ranks/process_ranks.h"

namespace caravan::testing {
namespace {

const auto kCases = ::testing::ValuesIn(rank_cases("shm", {1, 2, 3, 4}, run_process_ranks));
const auto kSeveral = ::testing::ValuesIn(rank_cases("shm", {2, 3, 4}, run_process_ranks));

}  // namespace

INSTANTIATE_TEST_SUITE_P(Shm, Reductions, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Shm, Movement, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Shm, LargeSizes, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Shm, Messages, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Shm, Splits, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Shm, Asynchrony, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Shm, Faults, kSeveral, case_name);
INSTANTIATE_TEST_SUITE_P(Shm, Algorithms, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Shm, TrafficCounts, kCases, case_name);

}  // namespace caravan::testing

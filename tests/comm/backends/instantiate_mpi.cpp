#include "tests/comm/backends/mpi_ranks.h"
#include "tests/comm/suites.h"

namespace caravan::testing {
namespace {

/// The suites that need two ranks have nothing to run in a process without mpirun.
std::vector<int> several() { return num_mpi_ranks() > 1 ? std::vector<int>{num_mpi_ranks()} : std::vector<int>{}; }

const auto kCases = ::testing::ValuesIn(rank_cases("mpi", {num_mpi_ranks()}, run_mpi_ranks));
const auto kSeveral = ::testing::ValuesIn(rank_cases("mpi", several(), run_mpi_ranks));
const auto kUnchecked = ::testing::ValuesIn(rank_cases("unchecked_mpi", several(), run_unchecked_mpi_ranks));

}  // namespace

INSTANTIATE_TEST_SUITE_P(Mpi, Reductions, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Mpi, Movement, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Mpi, LargeSizes, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Mpi, Messages, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Mpi, Splits, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Mpi, Asynchrony, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Mpi, Faults, kSeveral, case_name);
INSTANTIATE_TEST_SUITE_P(Mpi, Algorithms, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(Mpi, TrafficCounts, kCases, case_name);

INSTANTIATE_TEST_SUITE_P(UncheckedMpi, Reductions, kUnchecked, case_name);
INSTANTIATE_TEST_SUITE_P(UncheckedMpi, Movement, kUnchecked, case_name);
INSTANTIATE_TEST_SUITE_P(UncheckedMpi, Messages, kUnchecked, case_name);
INSTANTIATE_TEST_SUITE_P(UncheckedMpi, Splits, kUnchecked, case_name);
INSTANTIATE_TEST_SUITE_P(UncheckedMpi, Asynchrony, kUnchecked, case_name);

}  // namespace caravan::testing

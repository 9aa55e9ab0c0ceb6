#include "caravan/comm/backends/hierarchical/hierarchical.h"
#include "tests/comm/backends/mpi_ranks.h"
#include "tests/comm/suites.h"

namespace caravan::testing {
namespace {

/// The ranks of mpirun as two hosts, by name: the first has half of them, and one more if they are odd.
int ranks_of_first() { return (num_mpi_ranks() + 1) / 2; }

void run_on_two_hosts(int num_ranks, const RankBody& body, const CommOptions& options) {
  run_mpi_ranks(num_ranks, body, options,
                [](const RankInfo& info, const std::shared_ptr<Store>& store, const CommOptions& given) {
                  return make_hierarchical_world(info, store, given, "mpi", info.rank < ranks_of_first() ? "a" : "b");
                });
}

/// Alone, without mpirun, nothing is to be run.
std::vector<RankCase> cases() {
  if (num_mpi_ranks() == 1) return {};
  RankCase result{"shm_mpi", num_mpi_ranks(), run_on_two_hosts};
  result.hosts = {ranks_of_first(), num_mpi_ranks() - ranks_of_first()};
  return {result};
}

const auto kCases = ::testing::ValuesIn(cases());

}  // namespace

INSTANTIATE_TEST_SUITE_P(ShmMpi, Reductions, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(ShmMpi, Movement, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(ShmMpi, LargeSizes, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(ShmMpi, Messages, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(ShmMpi, Splits, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(ShmMpi, Asynchrony, kCases, case_name);
INSTANTIATE_TEST_SUITE_P(ShmMpi, Faults, kCases, case_name);

}  // namespace caravan::testing

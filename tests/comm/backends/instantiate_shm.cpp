#include "tests/comm/reference.h"
#include "tests/comm/suites.h"
#include "tests/ranks/process_ranks.h"

namespace caravan::testing {
namespace {

const auto kCases = ::testing::ValuesIn(rank_cases("shm", {1, 2, 3, 4}, run_process_ranks));
const auto kSeveral = ::testing::ValuesIn(rank_cases("shm", {2, 3, 4}, run_process_ranks));

// The same with buffers that other ranks can access: all buffers, or those of some ranks only.
template <Memory memory>
void run_with(int ranks, const RankBody& body, const CommOptions& options) {
  run_process_ranks(
      ranks,
      [&body](const std::shared_ptr<Communicator>& world) {
        const MemoryOf memory_of(*world, memory);
        body(world);
      },
      options);
}

const auto kArena = ::testing::ValuesIn(rank_cases("shm_arena", {2, 3, 4}, run_with<Memory::arena>));
const auto kMixed = ::testing::ValuesIn(rank_cases("shm_mixed", {2, 3}, run_with<Memory::mixed>));

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

INSTANTIATE_TEST_SUITE_P(ShmArena, Reductions, kArena, case_name);
INSTANTIATE_TEST_SUITE_P(ShmMixed, Reductions, kMixed, case_name);
INSTANTIATE_TEST_SUITE_P(ShmArena, Movement, kArena, case_name);
INSTANTIATE_TEST_SUITE_P(ShmMixed, Movement, kMixed, case_name);
INSTANTIATE_TEST_SUITE_P(ShmArena, LargeSizes, kArena, case_name);
INSTANTIATE_TEST_SUITE_P(ShmMixed, LargeSizes, kMixed, case_name);
INSTANTIATE_TEST_SUITE_P(ShmArena, Messages, kArena, case_name);
INSTANTIATE_TEST_SUITE_P(ShmMixed, Messages, kMixed, case_name);
INSTANTIATE_TEST_SUITE_P(ShmArena, Asynchrony, kArena, case_name);
INSTANTIATE_TEST_SUITE_P(ShmMixed, Asynchrony, kMixed, case_name);
INSTANTIATE_TEST_SUITE_P(ShmArena, Faults, kArena, case_name);
INSTANTIATE_TEST_SUITE_P(ShmMixed, Faults, kMixed, case_name);

}  // namespace caravan::testing

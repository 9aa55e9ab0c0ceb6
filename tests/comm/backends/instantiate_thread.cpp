#include "caravan/comm/backends/shared/thread_ranks.h"
#include "tests/comm/reference.h"
#include "tests/comm/suites.h"

namespace caravan::testing {
namespace {

const auto kCases = ::testing::ValuesIn(rank_cases("thread", {1, 2, 3, 4, 5, 8}, run_thread_ranks));
const auto kUpToFour = ::testing::ValuesIn(rank_cases("thread", {1, 2, 3, 4}, run_thread_ranks));
const auto kSeveral = ::testing::ValuesIn(rank_cases("thread", {2, 3, 4}, run_thread_ranks));

// The same with buffers that other ranks can access: all buffers, or those of some ranks only.
template <Memory memory>
void run_with(int ranks, const RankBody& body, const CommOptions& options) {
  run_thread_ranks(
      ranks,
      [&body](const std::shared_ptr<Communicator>& world) {
        const MemoryOf memory_of(*world, memory);
        body(world);
      },
      options);
}

const auto kArena = ::testing::ValuesIn(rank_cases("thread_arena", {2, 3, 4}, run_with<Memory::arena>));
const auto kMixed = ::testing::ValuesIn(rank_cases("thread_mixed", {2, 3}, run_with<Memory::mixed>));

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

INSTANTIATE_TEST_SUITE_P(ThreadArena, Reductions, kArena, case_name);
INSTANTIATE_TEST_SUITE_P(ThreadMixed, Reductions, kMixed, case_name);
INSTANTIATE_TEST_SUITE_P(ThreadArena, Movement, kArena, case_name);
INSTANTIATE_TEST_SUITE_P(ThreadMixed, Movement, kMixed, case_name);
INSTANTIATE_TEST_SUITE_P(ThreadArena, LargeSizes, kArena, case_name);
INSTANTIATE_TEST_SUITE_P(ThreadMixed, LargeSizes, kMixed, case_name);
INSTANTIATE_TEST_SUITE_P(ThreadArena, Messages, kArena, case_name);
INSTANTIATE_TEST_SUITE_P(ThreadMixed, Messages, kMixed, case_name);
INSTANTIATE_TEST_SUITE_P(ThreadArena, Asynchrony, kArena, case_name);
INSTANTIATE_TEST_SUITE_P(ThreadMixed, Asynchrony, kMixed, case_name);
INSTANTIATE_TEST_SUITE_P(ThreadArena, Faults, kArena, case_name);
INSTANTIATE_TEST_SUITE_P(ThreadMixed, Faults, kMixed, case_name);

}  // namespace caravan::testing

#include "caravan/comm/backends/shared/thread_ranks.h"

#include <stdexcept>
#include <thread>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "tests/ranks/rank_case.h"

namespace caravan::testing::thread_ranks_test {
namespace {

const CommOptions kShortWaits{.timeout = std::chrono::seconds(20)};

}  // namespace

/// The others fail too, often at an earlier time, but only as a consequence.
TEST(ThreadRanks, ThrowTheFirstCause) {
  for (int failing = 0; failing < 3; ++failing) {
    const auto body = [&](const std::shared_ptr<Communicator>& world) {
      world->barrier();
      if (world->rank() == failing) throw DataError({.op = "data", .fact = "the text is empty"});
      world->barrier();
    };
    EXPECT_THAT(error_of<DataError>([&] { run_thread_ranks(3, body, kShortWaits); }),
                ::testing::HasSubstr("the text is empty"));
  }
}

TEST(ThreadRanks, RethrowAnyExceptionOfABody) {
  const auto body = [](const std::shared_ptr<Communicator>& world) {
    if (world->rank() == 1) throw 7;
    world->barrier();
  };
  EXPECT_THROW(run_thread_ranks(2, body, kShortWaits), int);
}

/// A rank that returns normally while its peers still make calls.
TEST(ThreadRanks, NameARankThatReturnedEarly) {
  const auto body = [](const std::shared_ptr<Communicator>& world) {
    if (world->rank() == 2) return;
    world->barrier("after the end");
  };
  const std::string error = error_of<CommError>([&] { run_thread_ranks(3, body, kShortWaits); });
  EXPECT_THAT(error, ::testing::HasSubstr("rank 2"));
}

TEST(ThreadRanks, EachHasItsOwnCounterOfMemory) {
  run_thread_ranks(
      3,
      [](const std::shared_ptr<Communicator>& world) {
        EXPECT_EQ(MemoryCounter::current().live_bytes(), 0);
        const size_t bytes = 4096 * static_cast<size_t>(world->rank() + 1);
        auto memory = world->allocate(bytes);
        EXPECT_EQ(MemoryCounter::current().live_bytes(), static_cast<int64_t>(bytes));
        world->barrier();
        memory.reset();
        EXPECT_EQ(MemoryCounter::current().live_bytes(), 0);
      },
      kShortWaits);
}

/// A buffer may outlive its rank, its world and its thread.
TEST(ThreadRanks, AllocatedMemoryOutlivesTheWorld) {
  std::shared_ptr<void> kept;
  run_thread_ranks(
      2,
      [&](const std::shared_ptr<Communicator>& world) {
        if (world->rank() == 0) kept = world->allocate(1000);
      },
      kShortWaits);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(static_cast<const char*>(kept.get())[i], 0);
}

TEST(ThreadRanks, RefuseFewerThanOne) {
  const auto nothing = [](const std::shared_ptr<Communicator>&) {};
  EXPECT_THAT(error_of<UsageError>([&] { run_thread_ranks(0, nothing); }), ::testing::HasSubstr("0 ranks"));
  EXPECT_THAT(error_of<UsageError>([&] { run_thread_ranks(-1, nothing); }), ::testing::HasSubstr("-1 ranks"));
}

}  // namespace caravan::testing::thread_ranks_test

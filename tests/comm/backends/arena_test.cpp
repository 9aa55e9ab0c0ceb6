#include <atomic>
#include <cstring>
#include <thread>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "tests/ranks/rank_case.h"

namespace caravan::testing::arena_test {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBytes = size_t{1} << 20;
constexpr int64_t kCount = kBytes / sizeof(float);

Buffer floats(const std::shared_ptr<void>& memory, int64_t count = kCount) {
  return {memory.get(), count, Dtype::fp32, {}};
}

bool is_zero(const std::shared_ptr<void>& memory, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(memory.get());
  for (size_t i = 0; i < bytes; ++i) {
    if (at[i] != std::byte{0}) return false;
  }
  return true;
}

}  // namespace

TEST(Arena, MemoryIsAlignedAndZeroed) {
  run_thread_ranks(2, [](const std::shared_ptr<Communicator>& world) {
    const void* first = nullptr;
    for (int i = 0; i < 3; ++i) {
      const std::shared_ptr<void> memory = world->allocate(kBytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 64, 0U);
      EXPECT_TRUE(is_zero(memory, kBytes));
      std::memset(memory.get(), 0xff, kBytes);
      if (first == nullptr) first = memory.get();
      EXPECT_EQ(memory.get(), first) << "freed memory is reused";
    }
  });
}

TEST(Arena, CountsItsMemory) {
  run_thread_ranks(2, [](const std::shared_ptr<Communicator>& world) {
    const int64_t before = MemoryCounter::current().live_bytes();
    const std::shared_ptr<void> memory = world->allocate(kBytes);
    EXPECT_EQ(MemoryCounter::current().live_bytes() - before, static_cast<int64_t>(kBytes));
  });
}

TEST(Arena, MemoryThatPeersStillReadIsNotReused) {
  run_thread_ranks(2, [](const std::shared_ptr<Communicator>& world) {
    std::shared_ptr<void> memory = world->allocate(kBytes);
    const void* const place = memory.get();
    Work work = world->all_reduce_async(floats(memory), floats(memory), ReduceOp::sum);
    memory.reset();  // the other rank may not have started yet
    const std::shared_ptr<void> next = world->allocate(kBytes);
    EXPECT_TRUE(work.done() || next.get() != place);
    work.wait();
    EXPECT_TRUE(is_zero(next, kBytes)) << "a peer has written into it";
  });
}

TEST(Arena, MemoryThatNoOperationUsesIsReused) {
  std::atomic<bool> may_start{false};
  run_thread_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
    std::shared_ptr<void> used = world->allocate(kBytes);
    std::shared_ptr<void> unused = world->allocate(kBytes);
    const void* const place = unused.get();
    while (world->rank() == 1 && !may_start.load()) std::this_thread::yield();
    Work work = world->all_reduce_async(floats(used), floats(used), ReduceOp::sum);
    if (world->rank() == 0) {
      EXPECT_FALSE(work.done());
      used.reset();
      unused.reset();
      EXPECT_EQ(world->allocate(kBytes).get(), place);
    }
    may_start.store(true);
    work.wait();
  });
}

TEST(Arena, FreesOnAnotherThread) {
  run_thread_ranks(2, [](const std::shared_ptr<Communicator>& world) {
    std::shared_ptr<void> memory = world->allocate(kBytes);
    const void* const place = memory.get();
    std::thread([memory = std::move(memory)]() mutable { memory.reset(); }).join();
    EXPECT_EQ(world->allocate(kBytes).get(), place);
  });
}

TEST(Arena, AllocatingTooMuchIsAnError) {
  run_thread_ranks(2, [](const std::shared_ptr<Communicator>& world) {
    const std::string text = error_of<ResourceError>([&] { world->allocate(size_t{1} << 62); });
    EXPECT_THAT(text, HasSubstr("no room for"));
    world->barrier();  // the communicator still works
  });
}

TEST(SharedBuffer, IsOneMemoryAndItsGatherIsAView) {
  run_thread_ranks(3, [](const std::shared_ptr<Communicator>& world) {
    const std::shared_ptr<void> memory = world->allocate_shared(3 * kBytes);
    EXPECT_TRUE(is_zero(memory, 3 * kBytes));
    auto* const all = static_cast<float*>(memory.get());
    world->barrier();
    float* const own = all + world->rank() * kCount;
    for (int64_t i = 0; i < kCount; ++i) own[i] = static_cast<float>(world->rank() * 1000 + i % 7);
    world->all_gather(ConstBuffer(own, kCount, Dtype::fp32), floats(memory, 3 * kCount));
    for (int rank = 0; rank < 3; ++rank) {
      for (int64_t i = 0; i < kCount; i += 97) EXPECT_EQ(all[rank * kCount + i], rank * 1000 + i % 7);
    }
    world->barrier();
    // Only the owner copies a part that is inside another buffer.
    const std::shared_ptr<void> part = world->allocate(kBytes);
    std::fill_n(static_cast<float*>(part.get()), kCount, static_cast<float>(world->rank() + 5));
    world->all_gather(floats(part), floats(memory, 3 * kCount));
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(all[rank * kCount + kCount - 1], rank + 5);
    world->barrier();
  });
}

TEST(SharedBuffer, IsFreedByItsLastUser) {
  run_thread_ranks(2, [](const std::shared_ptr<Communicator>& world) {
    std::shared_ptr<void> memory = world->allocate_shared(kBytes);
    const void* const place = memory.get();
    if (world->rank() == 0) memory.reset();
    world->barrier();
    const std::shared_ptr<void> other = world->allocate(kBytes);
    EXPECT_NE(other.get(), place) << "rank 1 still uses it";
    world->barrier();
    memory.reset();
    world->barrier();
    EXPECT_EQ(world->allocate_shared(kBytes).get(), place);
    world->barrier();
  });
}

TEST(SharedBuffer, DifferentSizesAreAnErrorOnEveryRank) {
  run_thread_ranks(3, [](const std::shared_ptr<Communicator>& world) {
    const std::string text =
        error_of<CommError>([&] { world->allocate_shared(world->rank() == 1 ? kBytes : 2 * kBytes); });
    EXPECT_THAT(text, HasSubstr("allocate_shared"));
    EXPECT_THAT(text, HasSubstr("rank 1: allocate_shared 1048576 bytes"));
  });
}

TEST(SharedBuffer, AllocatingTooMuchIsAnErrorOnEveryRank) {
  run_thread_ranks(2, [](const std::shared_ptr<Communicator>& world) {
    EXPECT_THAT(error_of<ResourceError>([&] { world->allocate_shared(size_t{1} << 62); }),
                HasSubstr(world->rank() == 0 ? "no room for" : "rank 0 of the communicator could not allocate"));
  });
}

}  // namespace caravan::testing::arena_test

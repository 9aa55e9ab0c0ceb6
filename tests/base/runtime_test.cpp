#include "caravan/base/runtime.h"

#include <stdexcept>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/block_cache.h"
#include "caravan/base/memory/held_blocks.h"
#include "caravan/base/memory/memory_counter.h"

namespace caravan::runtime_test {
namespace {

TEST(Runtime, OnlyOneMayExistAtATime) { EXPECT_THROW(Runtime second, UsageError); }

TEST(Runtime, ChargesTensorsToTheScopeOfTheThread) {
  auto* one = new MemoryCounter;
  auto* two = new MemoryCounter;
  at::Tensor survivor;
  std::thread first([&] {
    const MemoryScope scope(*one);
    const at::Tensor temporary = at::empty({1000}, at::kFloat);
    EXPECT_EQ(one->live_bytes(), 4000);
    survivor = at::empty({10}, at::kDouble);
  });
  std::thread second([&] {
    const MemoryScope scope(*two);
    const at::Tensor mine = at::empty({7}, at::kByte);
    EXPECT_EQ(two->live_bytes(), 7);
  });
  first.join();
  second.join();
  EXPECT_EQ(one->live_bytes(), 80);
  EXPECT_EQ(one->peak_bytes(), 4080);
  EXPECT_EQ(two->live_bytes(), 0);
  survivor.reset();  // freed on another thread: still credited to the rank that holds it
  EXPECT_EQ(one->live_bytes(), 0);
}

TEST(Runtime, CountsMetaTensorsLikeOthers) {
  auto* counter = new MemoryCounter;
  const MemoryScope scope(*counter);
  const auto meta = at::TensorOptions(at::kMeta);
  {
    const at::Tensor x = at::empty({10, 100}, meta);
    EXPECT_EQ(counter->live_bytes(), 4000);
    EXPECT_EQ(x.storage().data(), nullptr);
    const at::Tensor sum = x + x.narrow(0, 0, 1);  // a view takes nothing
    EXPECT_EQ(counter->live_bytes(), 8000);
    EXPECT_EQ(at::empty({0}, meta).numel(), 0);
  }
  EXPECT_EQ(counter->live_bytes(), 0);
  EXPECT_EQ(counter->peak_bytes(), 8000);
}

TEST(Runtime, ReportsAndStopsAnAllocation) {
  auto* counter = new MemoryCounter;
  const MemoryScope scope(*counter);
  bool is_done = false;
  const auto call = [&] {
    const at::Tensor one = at::empty({10}, at::kFloat);
    const at::Tensor two = at::empty({30}, at::kFloat);
    is_done = true;
  };
  EXPECT_EQ(bytes_of_allocation(1, call), 40);
  EXPECT_EQ(bytes_of_allocation(2, call), 120);
  EXPECT_FALSE(is_done);
  EXPECT_EQ(counter->peak_bytes(), 0);
  EXPECT_EQ(bytes_of_allocation(3, call), 0);
  EXPECT_TRUE(is_done);
  EXPECT_THROW(bytes_of_allocation(9, [] { throw std::runtime_error("its own"); }), std::runtime_error);
  call();
  EXPECT_EQ(counter->peak_bytes(), 160) << "later allocations are as ever";
}

/// As a cache with memory does: blocks of a class are kept for the next use of that class.
TEST(Runtime, CountsBlocksHeldForMetaTensors) {
  constexpr int64_t kHeader = 64, kFloats = 1 << 16, kBytes = 4 * kFloats;
  const auto block = [](int64_t bytes) { return static_cast<int64_t>(BlockCache::rounded(bytes + kHeader)); };
  const auto meta = [](int64_t count) { return at::empty({count}, at::TensorOptions(at::kMeta)); };
  const HeldBlocksScope held;
  meta(kFloats);
  EXPECT_EQ(held.peak_bytes(), block(kBytes));
  { const at::Tensor one = meta(kFloats), two = meta(kFloats); }
  EXPECT_EQ(held.peak_bytes(), 2 * block(kBytes)) << "the first has the kept block";
  meta(3 * kFloats);
  EXPECT_EQ(held.peak_bytes(), 2 * block(kBytes) + block(3 * kBytes)) << "which is too small for another class";
  HeldBlocksScope::hold_once(7, 1000);
  HeldBlocksScope::hold_once(7, 1000);
  HeldBlocksScope::hold(500);
  HeldBlocksScope::hold(-500);
  {
    const HeldBlocksScope none(/*ignores=*/true);
    meta(kFloats);
    EXPECT_EQ(none.peak_bytes(), 0);
  }
  EXPECT_EQ(held.peak_bytes(), 2 * block(kBytes) + block(3 * kBytes) + 1500);
}

TEST(Runtime, CountsByKind) {
  auto* counter = new MemoryCounter;
  const MemoryScope scope(*counter);
  at::Tensor moments;
  {
    const MemoryKindScope kind(MemoryKind::optimizer);
    moments = at::empty({25}, at::TensorOptions(at::kMeta));
    const MemoryKindScope inner(MemoryKind::gradients);
    const at::Tensor gradients = at::empty({50}, at::kFloat);
    EXPECT_EQ(counter->live_bytes(MemoryKind::gradients), 200);
  }
  EXPECT_EQ(counter->live_bytes(MemoryKind::gradients), 0);
  const at::Tensor other = at::empty({10}, at::kFloat);
  EXPECT_EQ(counter->live_bytes(MemoryKind::optimizer), 100);
  EXPECT_EQ(counter->live_bytes(MemoryKind::other), 40);
  EXPECT_EQ(counter->live_bytes(), 140);
  const auto at_peak = counter->at_peak();
  EXPECT_EQ(at_peak[static_cast<size_t>(MemoryKind::gradients)], 200);
  EXPECT_EQ(at_peak[static_cast<size_t>(MemoryKind::optimizer)], 100);
  EXPECT_EQ(at_peak[static_cast<size_t>(MemoryKind::other)], 0);
  EXPECT_EQ(counter->peak_bytes(), 300);
  counter->reset_peak();
  EXPECT_EQ(counter->peak_bytes(), 140);
  EXPECT_EQ(counter->at_peak()[static_cast<size_t>(MemoryKind::other)], 40);
}

TEST(Runtime, CachesFreedMemoryAndAligns) {
  void* before = nullptr;
  {
    const at::Tensor block = at::empty({int64_t{3} << 20}, at::kFloat);
    before = block.data_ptr();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(before) % 64, 0U);
  }
  const at::Tensor again = at::empty({int64_t{3} << 20}, at::kFloat);
  EXPECT_EQ(again.data_ptr(), before);
}

TEST(Runtime, ReportsTheSizeOfAFailedAllocation) {
  try {
    at::empty({int64_t{1} << 56}, at::kFloat);
    FAIL() << "2^58 bytes were allocated";
  } catch (const ResourceError& error) {
    EXPECT_NE(std::string(error.what()).find("256 PiB"), std::string::npos) << error.what();
    EXPECT_EQ(error.exit_code(), 5);
  }
}

TEST(BlockCache, RoundsUpByAtMostAnEighthOrToAPageAndReusesAClass) {
  for (size_t bytes = 1; bytes < (size_t{1} << 24); bytes = bytes * 9 / 8 + 1) {
    const size_t rounded = BlockCache::rounded(bytes);
    EXPECT_GE(rounded, bytes);
    EXPECT_EQ(BlockCache::rounded(rounded), rounded);
    const bool is_page = BlockCache::has_pages(rounded) && rounded <= kHugePage;
    if (bytes > 512) {
      EXPECT_LE(rounded, bytes + bytes / (is_page ? 3 : 8) + 64);
    }
  }
  BlockCache cache;
  const size_t size = BlockCache::rounded(5 << 20);
  void* block = cache.take(size);
  cache.put(block, size);
  EXPECT_EQ(cache.take(size), block);
  cache.put(block, size);
  cache.release_all();
}

}  // namespace
}  // namespace caravan::runtime_test

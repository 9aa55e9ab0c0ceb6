#include "caravan/base/runtime.h"

#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/block_cache.h"
#include "caravan/base/error.h"
#include "caravan/base/memory_counter.h"

namespace caravan::runtime_test {
namespace {

TEST(Runtime, OnlyOneLivesAtATime) { EXPECT_THROW(Runtime second, UsageError); }

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

TEST(Runtime, KeepsFreedMemoryAndAligns) {
  void* before = nullptr;
  {
    const at::Tensor block = at::empty({int64_t{3} << 20}, at::kFloat);
    before = block.data_ptr();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(before) % 64, 0U);
  }
  const at::Tensor again = at::empty({int64_t{3} << 20}, at::kFloat);
  EXPECT_EQ(again.data_ptr(), before);
}

TEST(Runtime, SaysHowMuchCouldNotBeAllocated) {
  try {
    at::empty({int64_t{1} << 56}, at::kFloat);
    FAIL() << "2^58 bytes were allocated";
  } catch (const ResourceError& error) {
    EXPECT_NE(std::string(error.what()).find("256 PiB"), std::string::npos) << error.what();
    EXPECT_EQ(error.exit_code(), 5);
  }
}

TEST(BlockCache, RoundsUpByAtMostAnEighthAndReusesAClass) {
  for (size_t bytes = 1; bytes < (size_t{1} << 24); bytes = bytes * 9 / 8 + 1) {
    const size_t rounded = BlockCache::rounded(bytes);
    EXPECT_GE(rounded, bytes);
    EXPECT_EQ(BlockCache::rounded(rounded), rounded);
    if (bytes > 512) {
      EXPECT_LE(rounded, bytes + bytes / 8 + 4096);
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

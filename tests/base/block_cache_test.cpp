#include "caravan/base/memory/block_cache.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

namespace caravan::block_cache_test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::byte* page_of(void* block, size_t page) { return static_cast<std::byte*>(block) + page * kHugePage; }

uint64_t stamp_at(const void* memory) {
  uint64_t stamp = 0;
  std::memcpy(&stamp, memory, sizeof stamp);
  return stamp;
}

/// Writes `stamp` to both ends of a page.
void write(std::byte* page, uint64_t stamp) {
  std::memcpy(page, &stamp, sizeof stamp);
  std::memcpy(page + kHugePage - sizeof stamp, &stamp, sizeof stamp);
}

bool holds(const std::byte* page, uint64_t stamp) {
  return stamp_at(page) == stamp && stamp_at(page + kHugePage - sizeof stamp) == stamp;
}

/// The bytes of `block` that have memory behind them. (Those of the process count a sanitizer's shadow too.)
size_t resident_bytes(void* block, size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> is_resident(bytes / page);
  EXPECT_EQ(mincore(block, bytes, is_resident.data()), 0);
  return page * static_cast<size_t>(std::ranges::count_if(is_resident, [](unsigned char flags) { return flags & 1; }));
}

/// A block of `pages` whose page i holds `stamp` + i.
void* stamped(BlockCache& cache, size_t pages, uint64_t stamp) {
  void* block = cache.take(BlockCache::rounded(pages * kHugePage));
  for (size_t i = 0; i < pages; ++i) write(page_of(block, i), stamp + i);
  return block;
}

TEST(BlockCache, LentMemoryBacksOtherBlocksAndComesBack) {
  ASSERT_TRUE(can_move_pages());
  BlockCache cache;
  void* lender = stamped(cache, 8, 100);
  EXPECT_EQ(cache.lend(lender, 8 * kHugePage), 8U);
  const int64_t before = cache.peak_held_bytes();
  void* borrower = cache.take(4 * kHugePage);
  EXPECT_EQ(cache.peak_held_bytes(), before) << "no new memory";
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(holds(page_of(borrower, i), 100 + i)) << "a page of the lender";
    EXPECT_TRUE(holds(page_of(lender, i), 0)) << "which reads as zeros";
    EXPECT_TRUE(holds(page_of(lender, 4 + i), 104 + i)) << "still there";
    write(page_of(borrower, i), 200 + i);
  }
  cache.reclaim(lender, 2 * kHugePage);  // from the spare pages, of the lender itself
  EXPECT_EQ(cache.peak_held_bytes(), before);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(holds(page_of(lender, i), 104 + i));
  cache.put(borrower, 4 * kHugePage);
  cache.reclaim(page_of(lender, 2), 6 * kHugePage);  // from the cached block
  EXPECT_EQ(cache.peak_held_bytes(), before);
  for (size_t i = 2; i < 6; ++i) EXPECT_TRUE(holds(page_of(lender, i), 200 + i - 2));
  for (size_t i = 6; i < 8; ++i) EXPECT_TRUE(holds(page_of(lender, i), 100 + i)) << "never used";
  EXPECT_EQ(cache.take(4 * kHugePage), borrower) << "hollow, and in its class";
  for (size_t i = 0; i < 4; ++i) write(page_of(borrower, i), 300 + i);
  for (size_t i = 0; i < 8; ++i) EXPECT_FALSE(holds(page_of(lender, i), 0));
}

TEST(BlockCache, OnlyWholePagesAreLent) {
  BlockCache cache;
  void* block = stamped(cache, 4, 1);
  EXPECT_EQ(cache.lend(static_cast<std::byte*>(block) + 64, 3 * kHugePage), 2U);
  EXPECT_EQ(cache.lend(static_cast<std::byte*>(block) + 64, kHugePage), 0U);
  cache.take(4 * kHugePage);
  for (const size_t page : {0, 3}) EXPECT_TRUE(holds(page_of(block, page), 1 + page));
}

TEST(BlockCache, ABackedBlockIsTakenBeforeAHollowOne) {
  BlockCache cache;
  void* lender = stamped(cache, 4, 1);
  void* one = cache.take(2 * kHugePage);
  void* two = cache.take(2 * kHugePage);
  cache.put(one, 2 * kHugePage);
  cache.put(two, 2 * kHugePage);
  cache.lend(lender, 2 * kHugePage);
  void* three = cache.take(4 * kHugePage);  // two pages of the lender, two of `one`
  write(page_of(three, 3), 7);
  EXPECT_EQ(cache.take(2 * kHugePage), two);
  EXPECT_EQ(cache.take(2 * kHugePage), one);
}

TEST(BlockCache, ABlockWhosePagesAreAwayIsNotCached) {
  BlockCache cache;
  void* lender = stamped(cache, 4, 1);
  cache.lend(lender, 4 * kHugePage);
  void* borrower = cache.take(2 * kHugePage);
  cache.put(lender, 4 * kHugePage);
  EXPECT_TRUE(holds(page_of(borrower, 1), 2)) << "outlives the lender";
  void* next = stamped(cache, 4, 9);
  EXPECT_TRUE(holds(page_of(next, 3), 12));
  EXPECT_TRUE(holds(page_of(borrower, 1), 2));
}

TEST(BlockCache, ReleasesSpareMemory) {
  BlockCache cache;
  void* lender = stamped(cache, 4, 1);
  cache.lend(lender, 2 * kHugePage);
  cache.release_all();
  cache.reclaim(lender, 4 * kHugePage);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(holds(page_of(lender, i), 0));
  for (size_t i = 2; i < 4; ++i) EXPECT_TRUE(holds(page_of(lender, i), 1 + i));
}

TEST(BlockCache, NothingIsLostWhereMemoryCannotBeMoved) {
  BlockCache none(nullptr);
  void* lender = stamped(none, 4, 1);
  EXPECT_EQ(none.lend(lender, 4 * kHugePage), 0U);
  stamped(none, 4, 50);
  none.reclaim(lender, 4 * kHugePage);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(holds(page_of(lender, i), 1 + i));

  BlockCache refused([](void*, void*) { return false; });
  lender = stamped(refused, 4, 1);
  EXPECT_EQ(refused.lend(lender, 4 * kHugePage), 4U);
  void* other = stamped(refused, 4, 50);
  refused.reclaim(lender, 4 * kHugePage);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(holds(page_of(lender, i), 1 + i));
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(holds(page_of(other, i), 50 + i));
}

/// Blocks that are put back stay mapped.
TEST(BlockCache, BorrowersBringNoMemory) {
  ASSERT_TRUE(can_move_pages());
  constexpr size_t kPages = 32;
  constexpr size_t kBorrowed = 2 * kHugePage;
  BlockCache cache;
  void* lender = stamped(cache, kPages, 1);
  std::memset(lender, 1, kPages * kHugePage);
  cache.lend(lender, kPages * kHugePage);
  std::vector<void*> borrowers;
  for (size_t i = 0; i < kPages / 2; ++i) {
    borrowers.push_back(cache.take(kBorrowed));
    std::memset(borrowers.back(), 2, kBorrowed);
  }
  const auto resident = [&] {
    size_t bytes = resident_bytes(lender, kPages * kHugePage);
    for (void* borrower : borrowers) bytes += resident_bytes(borrower, kBorrowed);
    return bytes;
  };
  EXPECT_EQ(resident(), kPages * kHugePage) << "the borrowers have the memory of the lender";
  for (void* borrower : borrowers) cache.put(borrower, kBorrowed);
  cache.reclaim(lender, kPages * kHugePage);
  std::memset(lender, 3, kPages * kHugePage);
  EXPECT_EQ(resident(), kPages * kHugePage);
}

/// A cache with memory and one without, which do the same. Every page in use holds its own stamp.
class Both {
 public:
  static constexpr size_t kLent = 24;

  explicit Both(unsigned seed) : random_(seed) {
    lender_ = {real_.take(kLent * kHugePage), dry_.take(kLent * kHugePage), kLent * kHugePage};
    for (size_t i = 0; i < kLent; ++i) write(page_of(lender_.real, i), stamps_[i] = ++last_);
  }

  ~Both() {
    for (const Pair& block : blocks_) real_.put(block.real, block.bytes);
    real_.put(lender_.real, lender_.bytes);
    real_.release_all();
  }
  Both(const Both&) = delete;
  Both& operator=(const Both&) = delete;

  void act() {
    const unsigned what = random_() % 8;
    if (what < 3) {
      take();
    } else if (what < 6 && !blocks_.empty()) {
      put();
    } else if (what == 6) {
      const auto [first, count] = range();
      real_.lend(page_of(lender_.real, first), count * kHugePage);
      dry_.lend(page_of(lender_.dry, first), count * kHugePage);
      for (size_t i = first; i < first + count; ++i) stamps_.erase(i);
    } else {
      reclaim();
    }
    check();
  }

 private:
  struct Pair {
    void* real;
    void* dry;
    size_t bytes;
    uint64_t stamp = 0;
  };

  std::pair<size_t, size_t> range() {
    const size_t first = random_() % kLent;
    return {first, 1 + random_() % (kLent - first)};
  }
  void take() {
    constexpr std::array<size_t, 5> kSizes{512 << 10, 1600 << 10, 5 * kMiB, 6 * kMiB + 64, 13 * kMiB};
    const size_t bytes = BlockCache::rounded(kSizes[random_() % kSizes.size()]);
    blocks_.push_back({real_.take(bytes), dry_.take(bytes), bytes, ++last_});
    for (size_t i = 0; i < bytes / kHugePage; ++i) write(page_of(blocks_.back().real, i), last_ << 8U | i);
  }
  void put() {
    const size_t index = random_() % blocks_.size();
    real_.put(blocks_[index].real, blocks_[index].bytes);
    dry_.put(blocks_[index].dry, blocks_[index].bytes);
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  void reclaim() {
    const auto [first, count] = range();
    real_.reclaim(page_of(lender_.real, first), count * kHugePage);
    dry_.reclaim(page_of(lender_.dry, first), count * kHugePage);
    for (size_t i = first; i < first + count; ++i) {
      if (!stamps_.contains(i)) write(page_of(lender_.real, i), stamps_[i] = ++last_);
    }
  }
  void check() {
    EXPECT_EQ(real_.peak_held_bytes(), dry_.peak_held_bytes());
    for (const auto& [page, stamp] : stamps_) EXPECT_TRUE(holds(page_of(lender_.real, page), stamp)) << page;
    for (const Pair& block : blocks_) {
      for (size_t i = 0; i < block.bytes / kHugePage; ++i) {
        EXPECT_TRUE(holds(page_of(block.real, i), block.stamp << 8U | i)) << block.bytes << ", page " << i;
      }
    }
  }

  std::mt19937 random_;
  BlockCache real_, dry_{/*is_dry=*/true};
  Pair lender_{};
  std::vector<Pair> blocks_;
  std::map<size_t, uint64_t> stamps_;  ///< of the lender's pages that are not lent
  uint64_t last_ = 0;
};

TEST(BlockCache, WithoutMemoryCountsTheSame) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    Both both(seed);
    for (int i = 0; i < 200 && !::testing::Test::HasFailure(); ++i) both.act();
  }
}

TEST(BlockCache, ThreadsLendToEachOther) {
  BlockCache cache;
  const auto run = [&](uint64_t number) {
    void* lender = cache.take(8 * kHugePage);
    for (int round = 0; round < 20; ++round) {
      cache.lend(lender, 8 * kHugePage);
      const uint64_t stamp = number << 32U | static_cast<uint64_t>(round) << 8U;
      void* one = stamped(cache, 3, stamp);
      void* two = stamped(cache, 2, stamp + 16);
      for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(holds(page_of(one, i), stamp + i));
      cache.put(one, 3 * kHugePage);
      cache.reclaim(lender, 8 * kHugePage);
      for (size_t i = 0; i < 8; ++i) write(page_of(lender, i), stamp + 32 + i);
      for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(holds(page_of(two, i), stamp + 16 + i));
      for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(holds(page_of(lender, i), stamp + 32 + i));
      cache.put(two, 2 * kHugePage);
    }
    cache.put(lender, 8 * kHugePage);
  };
  std::vector<std::thread> threads;
  for (uint64_t number = 1; number <= 3; ++number) threads.emplace_back(run, number);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace caravan::block_cache_test

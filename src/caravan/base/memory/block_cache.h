#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

#include "caravan/base/memory/huge_pages.h"

namespace caravan {

/// Freed blocks by size class, eight classes per power of two: at most 1/8 of a block is unused, or 1/4 of one that is
/// a huge page. Thread-safe.
///
/// Blocks of a huge page and more can lend their pages (base/memory/page_loan.h). A page that is lent is *spare*: its
/// memory backs the next block that lacks some, and then it is *away*. Whoever takes it back gets the memory of any
/// page that nobody uses: of a spare one, else of a cached block, which then is *hollow*, else new memory.
class BlockCache {
 public:
  /// As move_huge_page; null: memory cannot be moved, and none is lent.
  using MovePage = bool (*)(void* from, void* to);

  /// A dry cache has no memory: its blocks have arbitrary addresses, each its own.
  explicit BlockCache(bool is_dry = false);
  /// With memory, which `move` moves.
  explicit BlockCache(MovePage move) noexcept : is_dry_(false), move_(move) {}

  /// The size of the class that holds `bytes`. `take` and `put` expect such a size.
  static size_t rounded(size_t bytes) noexcept;
  /// Whether blocks of this size have huge pages, the first of which begins where the block does.
  static bool has_pages(size_t rounded_bytes) noexcept;

  /// A block of `rounded_bytes`, 64-byte aligned, from the cache or newly allocated; nullptr if out of
  /// memory.
  void* take(size_t rounded_bytes);
  /// Caches a block for the next `take` of its class. One whose pages are away is returned to the system instead.
  void put(void* block, size_t rounded_bytes);
  /// Returns every cached block and the memory of spare pages to the system.
  void release_all();

  /// Lends the huge pages inside these bytes of a block in use, and returns their number. Until they are taken back the
  /// bytes have no contents: what is read is unspecified, and what is written may be lost.
  size_t lend(void* address, size_t bytes);
  /// Takes back every lent page that has some of these bytes. Its contents are unspecified.
  void reclaim(void* address, size_t bytes);

  /// The most that the system has provided at once: blocks in use, and cached blocks.
  int64_t peak_held_bytes();

 private:
  static constexpr int kSteps = 8;
  static constexpr int kClasses = 64 * kSteps;
  struct Free {
    void* block = nullptr;
    size_t num_hollow = 0;  ///< its first pages, which have no memory
  };

  static int class_of(size_t rounded_bytes) noexcept;
  static size_t bytes_of(int index) noexcept;
  void* fresh(size_t rounded_bytes);
  void release_down_to(size_t cached_limit);
  void drop_spare();
  void give_back(void* block, size_t bytes) const;
  bool forget_pages(void* block, size_t bytes);
  void fill(const std::vector<uintptr_t>& pages);
  size_t fill_from_spare(const std::vector<uintptr_t>& pages);
  void fill_from_cached(const std::vector<uintptr_t>& pages, size_t next);
  bool move(uintptr_t from, uintptr_t to) const;
  void note_peak() noexcept;

  std::mutex mutex_;
  /// Hollow blocks precede others, the least recently used first.
  std::array<std::vector<Free>, kClasses> free_;
  std::set<uintptr_t> spare_;  ///< addresses of pages
  std::set<uintptr_t> away_;
  size_t hollow_pages_ = 0;  ///< of all cached blocks
  bool has_lent_ = false;
  size_t cached_bytes_ = 0;
  size_t live_bytes_ = 0;
  size_t peak_bytes_ = 0;
  size_t peak_held_bytes_ = 0;
  uintptr_t next_dry_ = kHugePage;
  bool is_dry_;
  MovePage move_;
};

}  // namespace caravan

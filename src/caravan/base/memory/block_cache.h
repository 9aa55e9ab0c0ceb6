#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace caravan {

/// Freed blocks by size class, eight classes per power of two (at most 1/8 of a block is unused). Thread-safe.
class BlockCache {
 public:
  /// A dry cache has no memory: its blocks have arbitrary non-null addresses.
  explicit BlockCache(bool is_dry = false) noexcept : is_dry_(is_dry) {}

  /// The size of the class that holds `bytes`. `take` and `put` expect such a size.
  static size_t rounded(size_t bytes) noexcept;

  /// A block of `rounded_bytes`, 64-byte aligned, from the cache or newly allocated; nullptr if out of
  /// memory.
  void* take(size_t rounded_bytes);
  /// Caches a block for the next `take` of its class.
  void put(void* block, size_t rounded_bytes);
  /// Returns every cached block to the system.
  void release_all();
  /// The most that the system has provided at once: blocks in use, and cached blocks.
  int64_t peak_held_bytes();

 private:
  static constexpr int kSteps = 8;
  static constexpr int kClasses = 64 * kSteps;
  static int class_of(size_t rounded_bytes) noexcept;
  void* fresh(size_t rounded_bytes);
  void release_down_to(size_t cached_limit);
  void give_back(void* block, size_t bytes) const;

  std::mutex mutex_;
  std::array<std::vector<void*>, kClasses> free_;
  size_t cached_bytes_ = 0;
  size_t live_bytes_ = 0;
  size_t peak_bytes_ = 0;
  size_t peak_held_bytes_ = 0;
  bool is_dry_;
};

}  // namespace caravan

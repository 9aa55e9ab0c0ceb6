#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "caravan/comm/shared/segment.h"

namespace caravan::shared {

/// The allocator of one rank over its part of the segment: whole pages, best fit, zeroed, mapped before they are given
/// out. Blocks may be released on any thread.
///
/// Note [deferred free]: peers read and write a block until the operation on it is complete, so what is released while
/// this rank has an operation in flight is kept until it has none. After a failure a late peer may still be writing:
/// then nothing is given out again.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  Arena(std::shared_ptr<Segment> segment, int world_rank);

  /// Throws ResourceError if the arena has no room.
  std::shared_ptr<void> allocate(size_t bytes);
  /// A block that `users` ranks use: it is free when all have let go of it. For the rank that owns the arena; the
  /// others get theirs by `adopt`, from its offset.
  std::shared_ptr<void> allocate_shared(size_t bytes, int users, uint64_t& offset);
  std::shared_ptr<void> adopt(uint64_t offset, size_t bytes, int users);

  [[noreturn]] void throw_no_room(size_t bytes) const;

  /// By the rank's own thread, around every operation.
  void begin_operation() noexcept {
    in_flight_.store(in_flight_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  void end_operations(uint32_t count) noexcept;
  void keep_everything() noexcept { tainted_.store(true); }

  /// Maps a peer's memory that this rank is about to touch, once.
  void prefault_of_peer(uint64_t offset, size_t bytes);

 private:
  struct Block {
    size_t begin;
    size_t bytes;
    bool is_shared;
  };
  struct Mapped {
    uint32_t epoch = 0;
    std::vector<bool> units;  // kUnit bytes each
  };

  std::byte* take(size_t bytes);
  void release(const Block& block) noexcept;
  void reclaim() noexcept;
  void put_back(const Block& block) noexcept;
  bool is_in_use(const Block& block) const noexcept;

  std::shared_ptr<Segment> segment_;
  int world_rank_;
  std::atomic<uint32_t> in_flight_{0};
  std::atomic<bool> tainted_{false};
  std::atomic<bool> has_released_{false};
  std::mutex mutex_;
  std::map<size_t, size_t> free_;  // begin -> bytes, no two adjacent
  std::vector<Block> released_;
  std::vector<Mapped> mapped_;  // per rank of the world
};

}  // namespace caravan::shared

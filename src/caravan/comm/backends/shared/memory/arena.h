#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "caravan/comm/backends/shared/memory/segment.h"

namespace caravan::shared {

/// The allocator of one rank over its part of the segment: best fit, whole pages, zeroed and populated. Blocks may be
/// freed on any thread.
///
/// Note [deferred free]: peers read and write a block until the operation on it is complete, so a block that is freed
/// while this rank has operations in flight is not reused before those on it are complete. Only the rank's own thread
/// can tell which these are (`is_used`): it asks when it allocates; when the last operation ends, all blocks are free.
/// After a failure a late peer may still be writing: from then on nothing is reused.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  Arena(std::shared_ptr<Segment> segment, int world_rank);

  /// Whether an operation in flight has buffers in these bytes; null: that is unknown, so any may. Called on the rank's
  /// own thread.
  using IsUsed = std::function<bool(const std::byte* memory, size_t bytes)>;
  void set_is_used(IsUsed is_used) {
    const std::lock_guard lock(mutex_);
    is_used_ = std::move(is_used);
  }

  /// Null if the arena has no room left. Throws ResourceError if this is more than the process can use, or if the
  /// kernel has no memory left.
  std::shared_ptr<void> allocate(size_t bytes);
  /// A block with `users` ranks, which is freed when all of them have released it. Called by the rank that owns the
  /// arena; the others call `adopt` with its offset.
  std::shared_ptr<void> allocate_shared(size_t bytes, int users, uint64_t& offset);
  std::shared_ptr<void> adopt(uint64_t offset, size_t bytes, int users);

  /// Called on the rank's own thread around every operation.
  void begin_operation() noexcept {
    thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    in_flight_.store(in_flight_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  void end_operations(uint32_t count) noexcept;
  void stop_reuse() noexcept { tainted_.store(true); }

  /// Maps a peer's memory that this rank is about to access, unless that is done already.
  void populate_of_peer(uint64_t offset, size_t bytes);

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

  [[noreturn]] void throw_no_room(size_t bytes) const;
  std::byte* take(size_t bytes);  // null: no room
  void populate_or_throw(std::byte* memory, const Block& block);
  void release(const Block& block) noexcept;
  template <class Stays>
  void reclaim_unless(const Stays& stays);
  void reclaim() noexcept;
  void reclaim_unused();
  void put_back(const Block& block) noexcept;
  bool is_in_use(const Block& block) const noexcept;

  std::shared_ptr<Segment> segment_;
  int world_rank_;
  size_t max_bytes_;                       // of memory that the process can use
  std::atomic<std::thread::id> thread_{};  // that has begun the last operation
  IsUsed is_used_;
  std::atomic<uint32_t> in_flight_{0};
  std::atomic<bool> tainted_{false};
  std::atomic<bool> has_released_{false};
  std::mutex mutex_;
  std::map<size_t, size_t> free_;  // begin -> bytes, no two adjacent
  std::vector<Block> released_;
  std::vector<Mapped> mapped_;  // per rank of the world
};

}  // namespace caravan::shared

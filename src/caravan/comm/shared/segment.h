#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "caravan/comm/flight.h"
#include "caravan/comm/shared/doorbell.h"
#include "caravan/comm/shared/failure.h"

namespace caravan::shared {

/// What every rank of a world has in common, at the start of its memory. Zeroed memory is its initial state.
struct WorldControl {
  static constexpr size_t kNumSlots = 1024;  ///< communicators of more than one rank, in the whole world, at one time

  FailureRecord failure;  ///< a rank gave up or was lost: nothing goes on in the whole world
  alignas(64) std::array<std::atomic<uint64_t>, kNumSlots / 64> slots_in_use;
};

struct RankControl {
  alignas(64) Doorbell doorbell;               // peers read it at every message: nothing else lies in its line
  alignas(64) std::atomic<uint32_t> departed;  ///< its last communicator is destroyed, its process may end
  std::atomic<uint32_t> arena_epoch;           ///< grows when memory of its arena went back to the kernel
  alignas(64) FlightLog flight;
};

/// The memory of one world: the controls above, equal slots, one for each communicator, and an arena for each rank.
/// Mapped sparsely: a slot or a page of an arena costs nothing before it is used. Threads share one Segment; processes
/// each map the same descriptor. A place in it is named by its offset, which is the same for every rank and never 0.
class Segment {
 public:
  static size_t bytes(int num_ranks);

  /// Fresh zeroed memory of this process alone, for ranks that are threads.
  static std::shared_ptr<Segment> create_private(int num_ranks);
  /// Maps `descriptor` (of `bytes(num_ranks)`), which may be closed afterwards.
  static std::shared_ptr<Segment> map(int descriptor, int num_ranks);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int num_ranks() const noexcept { return num_ranks_; }
  WorldControl& world() const noexcept;
  RankControl& rank(int world_rank) const noexcept;

  /// Takes a zeroed slot; any rank, any time. Returns -1 if all are in use.
  int take_slot() noexcept;
  /// Gives back a slot that nobody will look at again.
  void release_slot(int slot) noexcept;
  std::byte* slot(int index) const noexcept;

  /// The memory that `world_rank` allocates from; as large as the machine's memory.
  std::byte* arena(int world_rank) const noexcept;
  size_t arena_bytes() const noexcept { return arena_bytes_; }
  /// The offset of `bytes` bytes at `data` if they lie in the arenas, else 0.
  uint64_t offset_of(const void* data, size_t bytes) const noexcept {
    const auto* at = static_cast<const std::byte*>(data);
    if (at < arenas_ || at + bytes > end_) return 0;
    return static_cast<uint64_t>(at - base_);
  }
  std::byte* at(uint64_t offset) const noexcept { return base_ + offset; }
  /// The rank whose arena `offset` lies in.
  int owner_of(uint64_t offset) const noexcept {
    return static_cast<int>(static_cast<size_t>(base_ + offset - arenas_) / arena_bytes_);
  }

 private:
  Segment(int descriptor, int num_ranks);

  std::byte* base_;
  std::byte* arenas_;
  std::byte* end_;
  size_t arena_bytes_;
  int num_ranks_;
};

/// Has the kernel map the pages now instead of one by one at their first use. May do nothing.
void prefault(std::byte* data, size_t bytes) noexcept;
/// Gives whole pages back; they read as zeros afterwards, for everyone. Returns false if the kernel cannot.
bool give_back(std::byte* data, size_t bytes) noexcept;

}  // namespace caravan::shared

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "caravan/base/system/fd.h"
#include "caravan/comm/backends/shared/doorbell.h"
#include "caravan/comm/backends/shared/peers/failure.h"
#include "caravan/comm/flight.h"

namespace caravan::shared {

/// What all ranks of a world share, at the start of its memory. Zeroed memory is its initial state.
struct WorldControl {
  static constexpr size_t kMaxSlots = 1024;

  FailureRecord failure;  ///< a rank failed or was lost: the whole world is dead
  alignas(64) std::array<std::atomic<uint64_t>, kMaxSlots / 64> slots_in_use;
};

struct RankControl {
  alignas(64) Doorbell doorbell;               // peers read it at every message: it has its own cache line
  alignas(64) std::atomic<uint32_t> departed;  ///< its last communicator is destroyed, its process may end
  std::atomic<uint32_t> arena_epoch;           ///< grows when memory of its arena is returned to the kernel
  alignas(64) FlightLog flight;
};

/// The parts of a world's memory: the controls above, equal slots, one for each communicator, and an arena for each
/// rank.
struct SegmentLayout {
  int num_ranks = 1;
  size_t num_slots = 0;    ///< communicators of more than one rank, in the whole world, at one time
  size_t arena_bytes = 0;  ///< of one rank

  /// At most `max_bytes`, unless the least that works is more. Each arena is as large as the memory that the process
  /// can use, if that fits. A world of one rank has neither slots nor an arena.
  static SegmentLayout of(int num_ranks, size_t max_bytes);
  /// Address space, not memory.
  size_t bytes() const noexcept { return arenas_begin() + static_cast<size_t>(num_ranks) * arena_bytes; }
  size_t slots_begin() const noexcept;
  size_t slot_bytes() const noexcept;
  size_t arenas_begin() const noexcept { return slots_begin() + num_slots * slot_bytes(); }

  bool operator==(const SegmentLayout&) const = default;
};

/// The address space that one world may reserve in this process: a part of what its limit (ulimit -v) leaves.
size_t reservable_bytes();

/// The memory of one world, mapped sparsely: a slot or a page of an arena costs nothing before it is used. Threads
/// share one Segment; processes each map the same descriptor. An address in it is shared as its offset, which is the
/// same for every rank and never 0.
///
/// Where limits refuse the address space, a smaller segment is tried. Throws ResourceError if the smallest is refused.
class Segment {
 public:
  /// Fresh zeroed memory of this process alone, for ranks that are threads.
  static std::shared_ptr<Segment> create_private(int num_ranks);
  /// Fresh zeroed memory of at most `max_bytes`, for ranks that are processes, and its descriptor. It has no name, so
  /// it goes away with the last process that holds it.
  static std::pair<Fd, std::shared_ptr<Segment>> create_shared(int num_ranks, size_t max_bytes);
  /// Maps the `descriptor` of another process, which may be closed afterwards.
  static std::shared_ptr<Segment> map(int descriptor, const SegmentLayout& layout);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const SegmentLayout& layout() const noexcept { return layout_; }
  int num_ranks() const noexcept { return layout_.num_ranks; }
  WorldControl& world() const noexcept;
  RankControl& rank(int world_rank) const noexcept;

  /// Takes a zeroed slot; any rank, at any time. Returns -1 if all are in use.
  int take_slot() noexcept;
  /// Frees a slot that nobody reads any more.
  void release_slot(int slot) noexcept;
  std::byte* slot(int index) const noexcept;

  /// The memory that `world_rank` allocates from.
  std::byte* arena(int world_rank) const noexcept;
  size_t arena_bytes() const noexcept { return layout_.arena_bytes; }
  /// The offset of `bytes` bytes at `data` if they lie in the arenas, else 0.
  uint64_t offset_of(const void* data, size_t bytes) const noexcept {
    const auto* at = static_cast<const std::byte*>(data);
    if (at < arenas_ || at + bytes > end_) return 0;
    return static_cast<uint64_t>(at - base_);
  }
  std::byte* at(uint64_t offset) const noexcept { return base_ + offset; }
  /// The rank whose arena `offset` lies in.
  int owner_of(uint64_t offset) const noexcept {
    return static_cast<int>(static_cast<size_t>(base_ + offset - arenas_) / layout_.arena_bytes);
  }

 private:
  Segment(std::byte* base, const SegmentLayout& layout) noexcept;

  std::byte* base_;
  std::byte* arenas_;
  std::byte* end_;
  SegmentLayout layout_;
};

/// Has the kernel map the pages now. Otherwise they are mapped one by one at first use, where a lack of memory is a
/// SIGBUS. Returns 0, or errno if memory is insufficient. Kernels before 5.14 cannot do it: returns 0.
int populate(std::byte* data, size_t bytes) noexcept;
/// Returns whole pages to the kernel; they read as zeros afterwards, for everyone. False if the kernel cannot.
bool release_pages(std::byte* data, size_t bytes) noexcept;

}  // namespace caravan::shared

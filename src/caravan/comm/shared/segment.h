#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "caravan/comm/shared/activity.h"
#include "caravan/comm/shared/doorbell.h"
#include "caravan/comm/shared/failure.h"

namespace caravan::shared {

/// What every rank of a world has in common, at the start of its memory. Zeroed memory is its initial state.
struct WorldControl {
  static constexpr size_t kNumSlots = 1024;  ///< communicators of more than one rank, in the whole world, at one time

  FailureRecord failure;  ///< a rank gave up or was lost: nothing goes on in the whole world
  alignas(64) std::array<std::atomic<uint64_t>, kNumSlots / 64> slots_in_use;
};

struct alignas(64) RankControl {
  Doorbell doorbell;
  std::atomic<uint32_t> departed;  ///< its last communicator is destroyed, its process may end
  Activity activity;
};

/// The memory of one world: the controls above and equal slots, one for each communicator. Mapped sparsely: a slot
/// costs nothing before it is used, and its pages are given back when its communicator ends. Threads share one Segment;
/// processes each map the same descriptor.
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

 private:
  Segment(int descriptor, int num_ranks);

  std::byte* base_;
  int num_ranks_;
};

}  // namespace caravan::shared

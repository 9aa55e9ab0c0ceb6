#pragma once

#include <memory>
#include <vector>

#include "caravan/comm/backends/shared/memory/arena.h"
#include "caravan/comm/backends/shared/memory/region.h"
#include "caravan/comm/backends/shared/memory/segment.h"
#include "caravan/comm/group_info.h"
#include "caravan/comm/work.h"

namespace caravan::shared {

/// The state of one rank in one communicator that all its operations share.
struct RankState : GroupInfo {
  std::shared_ptr<Segment> segment;
  std::vector<int> segment_ranks;  ///< of this communicator's ranks; world_ranks are their numbers in error messages
  std::shared_ptr<Arena> arena;
  Region region;
  bool compares_labels = true;            ///< of messages: CommOptions::check
  uint64_t round = 0;                     ///< the last round that this rank has started
  std::vector<const std::byte*> sources;  ///< scratch of one step, reused to avoid allocation
  std::vector<std::byte*> outs, piece_outs;

  void ring(int to) const { segment->rank(segment_ranks[static_cast<size_t>(to)]).doorbell.ring(); }
  void ring_others() const {
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) ring(peer);
    }
  }
};

/// An operation in progress, executed in steps that never block.
class SharedTask {
 public:
  /// `operation` outlives the task.
  SharedTask(RankState& state, Operation& operation) : state_(state), operation_(operation) {}
  virtual ~SharedTask() = default;
  SharedTask(const SharedTask&) = delete;
  SharedTask& operator=(const SharedTask&) = delete;

  Operation& operation() const noexcept { return operation_; }
  virtual Descriptor call() const { return describe(operation_); }

  /// Does what can be done without waiting. True if there was progress. Sets `finished` with the last step.
  /// Throws CommError if the ranks' calls do not match.
  virtual bool advance() = 0;
  bool finished() const noexcept { return finished_; }

  /// The ranks it is waiting for, after advance() has returned false.
  virtual std::vector<int> missing() const = 0;

 protected:
  RankState& state_;
  bool finished_ = false;

 private:
  Operation& operation_;
};

}  // namespace caravan::shared

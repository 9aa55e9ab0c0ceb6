#pragma once

#include <memory>
#include <string>
#include <vector>

#include "caravan/comm/group_seat.h"
#include "caravan/comm/shared/arena.h"
#include "caravan/comm/shared/region.h"
#include "caravan/comm/shared/segment.h"
#include "caravan/comm/work.h"

namespace caravan::shared {

/// One rank's place in one communicator: what every operation of it works on.
struct Seat : GroupSeat {
  std::shared_ptr<Segment> segment;
  std::vector<int> segment_ranks;  ///< of the ranks of this communicator; world_ranks is what errors call them
  std::shared_ptr<Arena> arena;
  Region region;
  uint64_t round = 0;                     ///< the last round of collectives that this rank has begun
  std::vector<const std::byte*> sources;  ///< scratch of one step, kept so that it allocates once
  std::vector<std::byte*> outs, piece_outs;

  void ring(int to) const { segment->rank(segment_ranks[static_cast<size_t>(to)]).doorbell.ring(); }
  void ring_others() const {
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) ring(peer);
    }
  }
};

/// An operation being executed, in steps that never block.
class Task {
 public:
  /// `operation` outlives the task.
  Task(Seat& seat, Operation& operation) : seat_(seat), operation_(operation) {}
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  Operation& operation() const noexcept { return operation_; }
  virtual Descriptor call() const { return describe(operation_); }

  /// Does what can be done now. True if anything was done. Sets `finished` with the last step.
  /// Throws CommError if the ranks' calls do not fit each other.
  virtual bool advance() = 0;
  bool finished() const noexcept { return finished_; }

  /// The ranks whose turn it is, if advance() has just returned false.
  virtual std::vector<int> missing() const = 0;

 protected:
  Seat& seat_;
  bool finished_ = false;

 private:
  Operation& operation_;
};

}  // namespace caravan::shared

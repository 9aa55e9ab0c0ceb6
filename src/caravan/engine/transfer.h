#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "caravan/comm/work.h"

namespace caravan {

/// The transfers of a step, each a sequence of asynchronous stages: a stage starts when the one before is complete,
/// such as an all-reduce after a reduce-scatter.
///
/// The ranks of an axis must start their collectives on it in one order, whatever completes first, and the model may
/// use the same axes. So nothing starts because something else has completed: stages start in add() and wait() alone,
/// which stand at positions of the schedule, equal on those ranks.
class TransferQueue {
 public:
  /// Starts something and returns its handle; one that is complete for local work.
  using Stage = std::function<Work()>;
  class Transfer;
  using Ticket = std::shared_ptr<Transfer>;

  /// Takes each earlier transfer one stage further, then starts the first stage of this one.
  Ticket add(std::vector<Stage> stages);
  /// Returns when this transfer is complete; null: at once. Throws what a stage throws.
  void wait(const Ticket& ticket);
  void wait_all();
  /// Lets what is in flight make progress.
  void poll();
  /// Forgets all transfers, after an error.
  void clear() noexcept { transfers_.clear(); }

 private:
  void drop_complete();

  std::vector<Ticket> transfers_;
};

}  // namespace caravan

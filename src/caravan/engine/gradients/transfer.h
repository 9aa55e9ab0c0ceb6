#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "caravan/comm/work.h"

namespace caravan {

/// The stages of one transfer: asynchronous stages, each of which starts when the previous one is complete, and local
/// work between them and after the last.
class TransferStages {
 public:
  /// Starts something and returns its handle.
  using Stage = std::function<Work()>;

  void add(Stage stage);
  /// Runs once everything added before is complete.
  void add_local(std::function<void()> work);

 private:
  friend class TransferQueue;
  std::vector<Stage> stages_;
  std::function<void()> finish_;  ///< after the last stage
};

/// The transfers of a step, each a sequence of asynchronous stages: a stage starts when the previous one is complete,
/// such as an all-reduce after a reduce-scatter.
///
/// The ranks of an axis must start their collectives on it in one order, regardless of completion order, and the model
/// may use the same axes. So completion never starts a stage: stages start only in add() and wait(), which are at the
/// same positions of the schedule on those ranks.
class TransferQueue {
 public:
  class Transfer;
  using Ticket = std::shared_ptr<Transfer>;

  /// Advances each earlier transfer by one stage, then starts the first stage of this one. Local work after the last
  /// stage runs in any call that finds it complete.
  Ticket add(TransferStages stages);
  /// Returns when this transfer is complete; null: at once. Throws what a stage throws.
  void wait(const Ticket& ticket);
  void wait_all();
  /// Makes progress on transfers in flight.
  void poll();
  /// Forgets all transfers, after an error.
  void clear() noexcept { transfers_.clear(); }

 private:
  void drop_complete();

  std::vector<Ticket> transfers_;
};

}  // namespace caravan

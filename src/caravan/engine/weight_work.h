#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "caravan/mesh/deferred_work.h"
#include "caravan/schedule/schedule.h"

namespace caravan {

/// The weight gradients of a step that backward defers, until their entry of the table or until nothing else is left to
/// compute.
class WeightWork {
 public:
  /// `queue` outlives this.
  explicit WeightWork(DeferredWork& queue) : queue_(queue) {}
  ~WeightWork() { queue_.clear(this); }
  WeightWork(const WeightWork&) = delete;
  WeightWork& operator=(const WeightWork&) = delete;

  /// Discards what an earlier step has left.
  void begin_step();
  /// A unit is reached: runs work without a separate entry.
  void reach();
  /// A backward begins. `waits`: its work waits for its entry.
  void begin(const Action& backward, bool waits);
  void push(std::function<void()> work);
  /// A backward has ended.
  void end();
  /// Runs the work deferred by the backward of that unit and micro-batch, and what came before. False: that backward
  /// did not begin.
  bool run(const Action& weight);
  void run_all() { queue_.run_all(); }

 private:
  DeferredWork& queue_;
  std::vector<std::pair<Action, size_t>> backwards_;  ///< backwards of the step, with the work that was pushed before
                                                      ///< each
  bool waits_ = false;                                ///< the last backward waits
  size_t num_pushed_ = 0;
  size_t num_run_ = 0;
};

}  // namespace caravan

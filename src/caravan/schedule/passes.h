#pragma once

#include "caravan/schedule/schedule.h"

namespace caravan {

/// The computation of a step, for Engine::run_step.
class Passes {
 public:
  virtual ~Passes() = default;
  /// Runs the units of `stage` forward, each once and in order, on micro-batch `micro_batch`.
  virtual void forward(int stage, int micro_batch) = 0;
  /// Repeats that forward, which kept only its inputs. The table says for which passes.
  virtual void recompute(int stage, int micro_batch) = 0;
  /// Back-propagates through that forward, or its recompute.
  virtual void backward(int stage, int micro_batch) = 0;
  /// Steps the optimizer of this rank with the gradients since the last update; `micro_batch` is the last of them. For
  /// stashed weights (UnshardedMemory).
  virtual void update(int micro_batch) = 0;
  /// A crossing between stages: `entry` is a send or recv of the table.
  virtual void transfer(const Action& entry) = 0;
  /// Called at the forward and backward of every unit: makes progress on what is in flight.
  virtual void poll() {}
};

}  // namespace caravan

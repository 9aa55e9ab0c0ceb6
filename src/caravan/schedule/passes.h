#pragma once

#include "caravan/schedule/schedule.h"

namespace caravan {

/// What a step computes, for Engine::run_step.
class Passes {
 public:
  virtual ~Passes() = default;
  /// Runs the units of `stage` forward, each once and in order, on micro-batch `micro_batch`.
  virtual void forward(int stage, int micro_batch) = 0;
  /// Runs that forward again, of which only the inputs were kept. Its table says for which passes.
  virtual void recompute(int stage, int micro_batch) = 0;
  /// Back-propagates what that forward, or its recompute, made.
  virtual void backward(int stage, int micro_batch) = 0;
  /// Steps the optimizer of this rank with the gradients since the last update; `micro_batch` is the last of them.
  /// Where weights are stashed (UnshardedMemory).
  virtual void update(int micro_batch) = 0;
  /// A crossing between stages: `entry` is a send or recv of the table.
  virtual void transfer(const Action& entry) = 0;
  /// Called at the forward and backward of every unit: lets what is in flight make progress.
  virtual void poll() {}
};

}  // namespace caravan

#pragma once

#include "caravan/engine/schedule.h"

namespace caravan {

/// What a step computes, for Engine::run_step.
class Passes {
 public:
  virtual ~Passes() = default;
  /// Runs the units of `stage` forward, each once and in order, on micro-batch `micro_batch`.
  virtual void forward(int stage, int micro_batch) = 0;
  /// Back-propagates what that forward made.
  virtual void backward(int stage, int micro_batch) = 0;
  /// A crossing between stages: `entry` is a send or recv of the table.
  virtual void transfer(const Action& entry) = 0;
};

}  // namespace caravan

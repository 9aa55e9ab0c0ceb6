#pragma once

#include "caravan/engine/flat/flat.h"

namespace caravan {

/// Takes the place of the collectives of a step (Engine::run_step): takes the gradients of each bucket, and fills its
/// kept leaf (FlatState::kept_leaves). The engine calls it; ranks need not be in the same step.
class StepExchange {
 public:
  virtual ~StepExchange() = default;
  /// `gradients`, flat in the layout of the leaf, are this rank's own and complete for this step. No other part of the
  /// step writes them again, and none reads the leaf after this.
  virtual void push(const Bucket& bucket, const at::Tensor& gradients) = 0;
  /// Returns when the leaf of `bucket` has the values for this step.
  virtual void pull(const Bucket& bucket) = 0;
  /// Called at the forward and backward of every unit.
  virtual void poll() = 0;
};

}  // namespace caravan

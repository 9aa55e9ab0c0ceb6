#pragma once

#include "caravan/engine/flat/flat.h"

namespace caravan {

/// Replaces the collectives of a step (Engine::run_step): takes the gradients of each bucket, and fills its kept
/// unsharded buffer (FlatState::kept_leaves). The engine calls it; ranks need not be in the same step.
class StepExchange {
 public:
  virtual ~StepExchange() = default;
  /// `gradients`, flat in the unsharded layout, belong to this rank and are complete for this step. Nothing else in the
  /// step writes them again or reads the unsharded parameters after this.
  virtual void push(const Bucket& bucket, const at::Tensor& gradients) = 0;
  /// Returns when the unsharded parameters of `bucket` have the values for this step.
  virtual void pull(const Bucket& bucket) = 0;
  /// Called at the forward and backward of every unit.
  virtual void poll() = 0;
};

}  // namespace caravan

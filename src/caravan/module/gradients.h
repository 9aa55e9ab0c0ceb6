#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/module/parameter.h"

namespace caravan {

/// Where gradients go: buckets, shards, a server.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// Adds a summand of the gradient of `parameter`: of the shape of its compute tensor, any floating dtype; the sink
  /// does not keep the tensor. A backward makes parameter.num_deposits() of them.
  virtual void deposit(Parameter& parameter, const at::Tensor& gradient) = 0;
};

/// The one owner of the hook slot of the leaves behind a model's parameters: what autograd accumulates for a leaf is
/// deposited and freed at once, so no rank ever holds a second full gradient.
///
/// The leaf of a parameter is compute() if that is a leaf, else rest(). Hooks fire in backward(), not in
/// autograd::grad(). Attach again after the leaves have been replaced. Detaches when destroyed.
class GradientDispatcher {
 public:
  /// `sink` outlives the dispatcher. Parameters that require no gradient get no hook.
  GradientDispatcher(std::vector<Parameter*> parameters, GradientSink& sink);
  ~GradientDispatcher();
  GradientDispatcher(const GradientDispatcher&) = delete;
  GradientDispatcher& operator=(const GradientDispatcher&) = delete;

 private:
  std::vector<at::Tensor> leaves_;
};

}  // namespace caravan

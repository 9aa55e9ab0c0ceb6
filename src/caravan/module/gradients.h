#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

namespace caravan {

class Parameter;

/// Destination of the gradients of a model's parameters: buckets, shards, a server. One owner for each parameter.
class GradientSink {
 public:
  /// Where the gradient of a parameter's compute() accumulates: a tensor of its shape, fp32 (fp64 for fp64).
  struct Sum {
    at::Tensor tensor;
    bool is_empty = true;  ///< its contents are undefined: the next summand overwrites them
  };

  virtual ~GradientSink() = default;
  /// The number of the current step, from 1; 0 between steps: then nothing accumulates.
  virtual int64_t open_step() const noexcept = 0;
  /// The caller adds one summand to the returned tensor, then calls accumulated(). Throws UsageError if the gradient of
  /// this step is already complete.
  virtual Sum sum_of(Parameter& parameter) = 0;
  virtual void accumulated(Parameter& parameter) = 0;
  /// For a forward that already computes the gradient: it adds it to sum_of() and calls added_early(), in an open step.
  /// Its backward calls confirmed(); if there will be no backward, withdrawn() is called instead.
  virtual void added_early(Parameter& parameter) = 0;
  virtual void confirmed(Parameter& parameter) = 0;
  virtual void withdrawn(Parameter& parameter) = 0;
  /// Runs `work`, which accumulates a gradient of `parameter`, now or later; in order.
  virtual void defer(Parameter& parameter, std::function<void()> work) = 0;
};

}  // namespace caravan

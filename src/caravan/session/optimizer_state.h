#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/module/parameter.h"

namespace torch::optim {
class Optimizer;
}

namespace caravan {

struct OptimizerKind;

/// What an optimizer of torch::optim keeps for the parameters of a model on this rank, as names, tensors and counts: of
/// SGD, Adam, AdamW, Adagrad and RMSprop.
class OptimizerState {
 public:
  /// No steps done: the optimizer has no state of the parameter.
  static constexpr int64_t kNone = -1;

  /// Throws UsageError for another kind of optimizer, and for a tensor in it that is not a parameter at rest.
  OptimizerState(torch::optim::Optimizer& optimizer, std::vector<Parameter*> parameters);

  /// "adamw".
  std::string kind() const;
  /// The names of the tensors that this kind can keep for a parameter, of its shape: {"exp_avg", ..}.
  const std::vector<std::string>& fields() const;
  /// By parameter: which of them it keeps by the options of its group, as bits; 0: not in this optimizer.
  const std::vector<int64_t>& masks() const noexcept { return masks_; }
  /// By parameter: the steps that it has counted, 0 where it does not count; kNone without state.
  std::vector<int64_t> counts() const;
  /// The tensor of a parameter; zeros without state.
  at::Tensor tensor(size_t parameter, size_t field) const;

  /// Replaces the state of a parameter: its count, and by field a tensor or none. kNone removes it.
  void set(size_t parameter, int64_t count, std::vector<at::Tensor> tensors);

 private:
  torch::optim::Optimizer& optimizer_;
  const OptimizerKind* kind_;
  std::vector<Parameter*> parameters_;
  std::vector<at::Tensor> optimized_;  ///< by parameter: the tensor that the optimizer knows; undefined: none
  std::vector<int64_t> masks_;
};

}  // namespace caravan

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/module/parameter.h"

namespace torch::optim {
class LRScheduler;
class Optimizer;
}  // namespace torch::optim

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

  /// The names of the options of this kind, "lr" first: {"lr", "momentum", ..}.
  const std::vector<std::string>& option_names() const;
  /// By parameter: the options of its group, a flag as 0 or 1; empty: not in this optimizer.
  std::vector<std::vector<double>> options() const;
  /// The parameters of each group, in the order of the groups.
  const std::vector<std::vector<size_t>>& groups() const noexcept { return groups_; }
  void set_lr(size_t group, double lr);

  /// `scheduler` is of the optimizer and outlives this.
  void add_scheduler(torch::optim::LRScheduler& scheduler) { schedulers_.push_back(&scheduler); }
  /// The steps that each scheduler has counted, in the order in which they were added.
  std::vector<int64_t> scheduler_steps() const;
  void set_scheduler_steps(const std::vector<int64_t>& steps);

  /// Replaces the state of a parameter: its count, and by field a tensor or none. kNone removes it.
  void set(size_t parameter, int64_t count, std::vector<at::Tensor> tensors);

 private:
  torch::optim::Optimizer& optimizer_;
  const OptimizerKind* kind_;
  std::vector<Parameter*> parameters_;
  std::vector<at::Tensor> optimized_;  ///< by parameter: the tensor that the optimizer knows; undefined: none
  std::vector<int64_t> masks_;
  std::vector<std::vector<size_t>> groups_;
  std::vector<torch::optim::LRScheduler*> schedulers_;
};

}  // namespace caravan

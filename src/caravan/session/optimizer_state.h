#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/comm/communicator.h"
#include "caravan/engine/training_state.h"

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace caravan {

struct OptimizerKind;

/// The option that says in which group of the optimizer a parameter is.
inline constexpr const char* kGroup = "group";

/// Whether checkpoints name a kind of torch's optimizers so.
bool is_kind_of_torch(const std::string& name);

/// What an optimizer of torch::optim keeps for the parameters of a model on this rank: of SGD, Adam, AdamW, Adagrad and
/// RMSprop.
class OptimizerState final : public StateOwner {
 public:
  /// Throws UsageError for another kind of optimizer, and for a tensor in it that is not a parameter at rest.
  OptimizerState(torch::optim::Optimizer& optimizer, std::vector<Parameter*> parameters);

  /// "adamw".
  std::string kind() const;
  /// Finds out what the optimizers of all ranks keep, for the walks that follow. Every rank of `world` calls it, at the
  /// same step. Sends 16 bytes for each parameter.
  void agree(Communicator& world);
  /// For each parameter that some rank optimizes, its tensors, zeros without state, and the steps that were counted. A
  /// load gives the optimizer of this rank those that it keeps.
  void walk(const Visit& visit) override;

  /// The names of the options of this kind, "lr" first, and kGroup: {"lr", "momentum", .., "group"}.
  const std::vector<std::string>& option_names() const noexcept { return option_names_; }
  /// By parameter: the options of its group, a flag as 0 or 1, and the number of the group; empty: not in this
  /// optimizer.
  std::vector<std::vector<double>> options() const;
  /// The parameters of each group, in the order of the groups.
  const std::vector<std::vector<size_t>>& groups() const noexcept { return groups_; }
  void set_lr(size_t group, double lr);

 private:
  /// No steps done: the optimizer has no state of the parameter.
  static constexpr int64_t kNone = -1;

  /// Of the parameters that are tiles of one tensor, or of one that is whole.
  void walk_whole(const std::string& of, const std::vector<size_t>& tiles, const Visit& visit);
  /// By parameter: the steps that it has counted, 0 where it does not count; kNone without state.
  std::vector<int64_t> counts() const;
  /// The tensor of a parameter; zeros without state.
  at::Tensor tensor(size_t parameter, size_t field) const;
  /// Replaces the state of a parameter: its count, and by field a tensor or none. kNone removes it.
  void set(size_t parameter, int64_t count, std::vector<at::Tensor> tensors);

  torch::optim::Optimizer& optimizer_;
  const OptimizerKind* kind_;
  std::vector<std::string> option_names_;
  std::vector<Parameter*> parameters_;
  std::vector<at::Tensor> optimized_;  ///< by parameter: the tensor that the optimizer knows; undefined: none
  /// By parameter: the fields of OptimizerKind that it keeps by the options of its group, as bits; 0: not in this
  /// optimizer.
  std::vector<int64_t> masks_;
  /// The same, and counts(), of the rank with the most: see agree().
  std::vector<int64_t> agreed_masks_;
  std::vector<int64_t> agreed_counts_;
  std::vector<std::vector<size_t>> groups_;
};

}  // namespace caravan

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/engine.h"
#include "caravan/optim/matrix_owners.h"

namespace caravan {

/// The trained parameters of which ranks hold parts, as whole tensors: each on one rank, its owner, for an optimizer
/// that needs them so (MatrixPlan, WholeUnits::parameters). The parts, which the model computes with, get their values
/// after each update.
class WholeParameters {
 public:
  /// `engine` outlives this. Every rank calls it, and update(). Throws UsageError, naming the first, for a parameter
  /// that is also cut by what is not data parallelism, for tiles, and for state that rests outside of the device.
  explicit WholeParameters(Engine& engine);

  /// Those of the model, in their order. One that is cut is laid out anew: its owner has all rows of it, the others of
  /// its stage none.
  const std::vector<Parameter*>& parameters() const noexcept { return parameters_; }
  /// What an optimizer of this rank updates: its own whole ones, and those that every rank has whole.
  std::vector<at::Tensor> tensors() const;

  /// Brings values and gradients to the owners, runs `update`, and brings the values back. Throws what one rank throws
  /// on all. After three updates that changed something, the lowest rank with one gives a warning of torch that names
  /// the first tensor which they left as it was although it had a gradient. Those three send 16 bytes for it.
  void update(const std::function<void()>& update);

 private:
  using Tensors = std::vector<at::Tensor>;  ///< by matrix of the plan; defined: of this rank
  void add(const Parameter& parameter, size_t matrix);
  Layout layout_of(const Parameter& parameter, int owner) const;
  Tensors of_round(const MatrixPlan::Round& round, const Tensors& all) const;
  void gather(const FlatMemory& from, const Tensors& to) const;
  Tensors gradients() const;
  void scatter();
  /// By matrix of the plan, of this rank.
  std::vector<double> sums() const;
  /// Before an update. What it returns looks at what has changed after it, while there is something to tell.
  std::function<void()> watch();
  void see_changes(const std::vector<double>& before, const std::vector<bool>& has_gradient);

  Engine& engine_;
  MatrixOwners owners_;
  std::vector<std::unique_ptr<Parameter>> whole_{};  ///< by matrix of the plan
  Tensors values_{};
  std::vector<Parameter*> parameters_{};
  /// Updates that are watched, of those that change something: in rounding a few small ones may be lost.
  static constexpr int kWatched = 3;
  int num_watched_ = 0;          ///< the same on all ranks
  std::vector<int> left_out_{};  ///< by matrix of the plan: how many of them left the tensor of this rank as it was
};

/// What optimizers of `engine` update: WholeParameters::parameters(), or, if that is null, those of the model.
std::vector<Parameter*> updated_parameters(Engine& engine, const WholeParameters* whole);

}  // namespace caravan

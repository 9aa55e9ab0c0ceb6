#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/engine.h"
#include "caravan/optim/matrix_exchange.h"

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
  /// on all.
  void update(const std::function<void()>& update);
  bool has_updated() const noexcept { return has_updated_; }

 private:
  using Tensors = std::vector<at::Tensor>;  ///< by matrix of the plan; defined: of this rank
  MatrixPlan planned() const;
  void add(const Parameter& parameter, size_t matrix);
  Layout layout_of(const Parameter& parameter, int owner) const;
  Tensors of_round(const MatrixPlan::Round& round, const Tensors& all) const;
  void gather(const FlatMemory& from, const Tensors& to) const;
  void scatter();

  Engine& engine_;
  MatrixRanks ranks_;
  MatrixPlan plan_;
  MatrixExchange exchange_;
  std::vector<std::unique_ptr<Parameter>> whole_{};  ///< by matrix of the plan
  Tensors values_{};
  std::vector<Parameter*> parameters_{};
  bool has_updated_ = false;
};

/// What optimizers of `engine` update: WholeParameters::parameters(), or, if that is null, those of the model.
std::vector<Parameter*> updated_parameters(Engine& engine, const WholeParameters* whole);

}  // namespace caravan

#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/gradients/transfer.h"
#include "caravan/mesh/mesh.h"

namespace caravan {

/// A stretch of the flat gradients that the ranks of an axis sum: whole pieces of parameters, with zeros in the gaps,
/// which must stay zeros: norm and optimizer go over them.
struct GradientRange {
  struct Piece {
    std::string name;  ///< of the parameter
    int64_t offset = 0;
    std::vector<int64_t> shape{};  ///< of what this rank reduces of it
  };
  MeshAxis axis;
  at::Tensor values;   ///< flat: this rank's summand at first; in the end the sum, the same bits on every rank
  int64_t offset = 0;  ///< of the first value in the flat gradients of the model
  std::vector<Piece> pieces{};
};

/// Replaces the all-reduce of gradients along one axis, for instance by one of fewer bytes: a communication hook. One
/// object serves one engine.
///
/// An engine calls it on every rank of the axis, in the same order, with ranges that cover the trained parameters
/// once a step. Where a range ends may differ between the first step and later ones.
class CommHook {
 public:
  virtual ~CommHook() = default;
  /// With what must be the same on every rank.
  virtual std::string name() const = 0;
  /// What is wrong with gradients that are kept and reduced in these dtypes; "" if nothing.
  virtual std::string wrong_with(at::ScalarType kept, at::ScalarType reduced) const {
    (void)kept, (void)reduced;
    return "";
  }
  /// Called once, before the first reduction: `count` values are in the flat gradients, of these options.
  virtual void prepare(int64_t count, const at::TensorOptions& options) { (void)count, (void)options; }

  /// Appends to `stages` what the ranks do in place of an all-reduce. When these run, the summands are complete; until
  /// they are through, nothing else touches `range.values`.
  virtual void reduce(const GradientRange& range, TransferStages& stages) = 0;

  /// What one step hands on to the next, by name: flat tensors laid out as the gradients, which differ between the
  /// ranks of the axis and whose sum counts, such as residuals of error feedback. Checkpoints keep them.
  virtual std::vector<std::pair<std::string, at::Tensor>> summands() const { return {}; }
  /// The same for what is equal on the ranks of the axis: one tensor for each parameter by its name, of any shape.
  /// What `set_shared` gives back
  /// may come from a run of other shapes: what does not fit is not used.
  virtual std::vector<std::pair<std::string, at::Tensor>> shared() const { return {}; }
  virtual void set_shared(const std::string& name, const at::Tensor& value) { (void)name, (void)value; }
};

}  // namespace caravan

#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/gradients/transfer.h"
#include "caravan/mesh/mesh.h"

namespace caravan {

/// A contiguous part of the flat gradients that the ranks of an axis sum: whole pieces of parameters, with zeros in the
/// gaps. The gaps must stay zero, since norm and optimizer read them.
struct GradientRange {
  struct Piece {
    std::string name;  ///< of the parameter
    int64_t offset = 0;
    std::vector<int64_t> shape{};  ///< shape of the part that this rank reduces
  };
  MeshAxis axis;
  at::Tensor values;   ///< flat: initially this rank's summand; finally the sum, the same bits on every rank
  int64_t offset = 0;  ///< of the first value in the flat gradients of the model
  std::vector<Piece> pieces{};
};

/// A communication hook: replaces the all-reduce of gradients along one axis, for example by one that sends fewer
/// bytes. One object serves one engine.
///
/// An engine calls it on every rank of the axis, in the same order, with ranges that cover the trained parameters
/// once a step. The ends of ranges may differ between the first step and later ones.
class CommHook {
 public:
  virtual ~CommHook() = default;
  /// Name plus every option that must match across ranks.
  virtual std::string name() const = 0;
  /// Why it cannot handle gradients kept and reduced in these dtypes; "" if it can.
  virtual std::string wrong_with(at::ScalarType kept, at::ScalarType reduced) const {
    (void)kept, (void)reduced;
    return "";
  }
  /// Called once, before the first reduction: the flat gradients have `count` values with these options.
  virtual void prepare(int64_t count, const at::TensorOptions& options) { (void)count, (void)options; }

  /// Appends to `stages` what the ranks do instead of an all-reduce. When the stages run, the summands are complete;
  /// until they are done, nothing else touches `range.values`.
  virtual void reduce(const GradientRange& range, TransferStages& stages) = 0;

  /// State that is summed over the ranks of the axis and kept across steps, by name: flat tensors laid out as the
  /// gradients, such as residuals of error feedback. Checkpoints keep it.
  virtual std::vector<std::pair<std::string, at::Tensor>> summands() const { return {}; }
  /// The same for state that is equal on the ranks of the axis: one tensor of any shape for each parameter, by its
  /// name. `set_shared` may pass state of a run with other shapes: what does not fit is ignored.
  virtual std::vector<std::pair<std::string, at::Tensor>> shared() const { return {}; }
  virtual void set_shared(const std::string& name, const at::Tensor& value) { (void)name, (void)value; }
};

}  // namespace caravan

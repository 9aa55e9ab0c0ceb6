#pragma once

#include <string>
#include <string_view>

#include "caravan/engine/flat/flat.h"
#include "caravan/mesh/mesh.h"
#include "caravan/optim/exact_sum.h"

namespace caravan {

/// Adds up a norm parameter by parameter, in any order: for gradients that are not on the device all at once.
class GradNorm {
 public:
  /// `mesh` outlives this. `apart`: see grad_norm.
  explicit GradNorm(const Mesh& mesh, std::string_view apart = "") : mesh_(mesh), apart_(apart) {}
  void add(const Slot& slot, const at::Tensor& gradient);
  /// All-reduces 560 bytes over `comm`.
  double finish(Communicator& comm);

 private:
  const Mesh& mesh_;
  std::string apart_;
  ExactSum sum_;
};

/// The 2-norm of the gradient of the whole model, from placements alone: square locally, S -> P and I -> P (coordinate
/// 0 counts), then all-reduce one number over the world. Squares add up in each row of a parameter (an index of dim 0),
/// and rows add up without rounding (ExactSum): every rank gets the same bits, and the same as with any other number of
/// ranks or data-parallel technique that has the same gradients, because these cut parameters at rows.
///
/// Every rank of `mesh` calls it. `state.gradients` are laid out as the sharded parameters. All-reduces 560 bytes.
double grad_norm(const FlatState& state, const Mesh& mesh);
/// The same where each coordinate of the axis `apart` has its own gradient: the norm over the ranks that share this
/// rank's coordinate, whose communicator is `comm`.
double grad_norm(const FlatState& state, const Mesh& mesh, std::string_view apart, Communicator& comm);

/// The sum of squares of this rank's `flat`, not exact: partial sums in its dtype, their sum in fp64.
double sum_of_squares(const at::Tensor& flat);

/// The factor that reduces `norm`, a grad_norm, to at most `max_norm`; Optimizer::step takes it. 1 if max_norm <= 0.
double clip_scale(double norm, double max_norm);
/// Scales the gradients where they rest.
void scale_gradients(FlatState& state, double scale);
/// The same by clip_scale, for an optimizer that takes no scale.
void clip_grad_norm(FlatState& state, double norm, double max_norm);

}  // namespace caravan

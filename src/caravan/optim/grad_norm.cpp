#include "caravan/optim/grad_norm.h"

#include <cmath>

#include <ATen/core/grad_mode.h>

#include "caravan/optim/kernels.h"

namespace caravan {
namespace {

double sum_of_squares(const at::Tensor& flat) {
  if (flat.is_meta()) return 0;
  if (flat.scalar_type() == at::kDouble) return kernels::sum_of_squares(flat.const_data_ptr<double>(), flat.numel());
  return kernels::sum_of_squares(flat.const_data_ptr<float>(), flat.numel());
}

}  // namespace

double grad_norm(const FlatState& state, const Mesh& mesh) {
  double own = 0;
  for (const FlatLayout::Range& range : state.layout.ranges()) {
    if (range.is_counted) own += sum_of_squares(state.gradients.narrow(range.offset, range.count));
  }
  double sum = own;
  if (mesh.size() > 1) {
    mesh.world().all_reduce({&own, 1, Dtype::fp64}, {&sum, 1, Dtype::fp64}, ReduceOp::sum, "gradient norm");
  }
  return std::sqrt(sum);
}

double clip_scale(double norm, double max_norm) { return max_norm > 0 && norm > max_norm ? max_norm / norm : 1; }

void clip_grad_norm(FlatState& state, double norm, double max_norm) {
  const at::NoGradGuard no_grad;
  const double scale = clip_scale(norm, max_norm);
  if (scale == 1) return;
  for (const FlatMemory::Piece& piece : state.gradients.pieces()) piece.memory.mul_(scale);
}

}  // namespace caravan

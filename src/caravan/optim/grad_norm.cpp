#include "caravan/optim/grad_norm.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/grad_mode.h>

namespace caravan {
namespace {

/// Sums pieces that fit in cache and adds them up in fp64: one fp32 sum over a large model would lose digits.
double sum_of_squares(const at::Tensor& range) {
  constexpr int64_t kPiece = int64_t{1} << 14;
  double sum = 0;
  for (int64_t begin = 0; begin < range.numel() && !range.is_meta(); begin += kPiece) {
    const at::Tensor piece = range.narrow(0, begin, std::min(kPiece, range.numel() - begin));
    sum += piece.dot(piece).item<double>();
  }
  return sum;
}

}  // namespace

double grad_norm(const FlatState& state, const Mesh& mesh) {
  const at::NoGradGuard no_grad;
  double own = 0;
  for (const FlatLayout::Range& range : state.layout.ranges()) {
    if (range.is_counted) own += sum_of_squares(state.gradients.narrow(0, range.offset, range.count));
  }
  double sum = own;
  if (mesh.size() > 1) {
    mesh.world().all_reduce({&own, 1, Dtype::fp64}, {&sum, 1, Dtype::fp64}, ReduceOp::sum, "gradient norm");
  }
  return std::sqrt(sum);
}

void clip_grad_norm(FlatState& state, double norm, double max_norm) {
  const at::NoGradGuard no_grad;
  if (max_norm > 0 && norm > max_norm) state.gradients.mul_(max_norm / norm);
}

}  // namespace caravan

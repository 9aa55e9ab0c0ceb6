#include "caravan/optim/newton_schulz.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>

namespace caravan {
namespace {

// They raise small singular values as fast as possible, and let the large ones move around 1.
constexpr double kOfX = 3.4445, kOfCube = -4.7750, kOfFifth = 2.0315;
constexpr double kLeastNorm = 1e-7;

}  // namespace

void newton_schulz(const at::Tensor& x, int64_t steps) {
  const at::NoGradGuard no_grad;
  if (x.numel() == 0) return;
  x.div_(at::linalg_vector_norm(x).clamp_min_(kLeastNorm));  // a tensor: a dry run has no number
  const bool is_tall = x.size(0) > x.size(1);
  const auto wide = [is_tall](const at::Tensor& matrix) { return is_tall ? matrix.t() : matrix; };
  at::Tensor now = wide(x), next = wide(at::empty_like(x));
  const int64_t side = now.size(0);
  at::Tensor gram = at::empty({side, side}, x.options()), sum = at::empty({side, side}, x.options());
  for (int64_t step = 0; step < steps; ++step) {
    at::mm_out(gram, now, now.t());
    at::addmm_out(sum, gram, gram, gram, kOfCube, kOfFifth);
    at::addmm_out(next, now, sum, now, kOfX, 1);
    std::swap(now, next);
  }
  if (steps % 2 == 1) wide(x).copy_(now);
}

double newton_schulz_flops(int64_t rows, int64_t columns) noexcept {
  const auto side = static_cast<double>(std::min(rows, columns)), other = static_cast<double>(std::max(rows, columns));
  return 2 * side * side * (2 * other + side);
}

}  // namespace caravan

#include "caravan/optim/grad_norm.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/grad_mode.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

/// Whether this rank counts its piece of the parameter's gradient. Each element counts once: where an axis is
/// invariant, on coordinate 0 of it. The other ranks have the same gradient, but on an unlike processor or with another
/// number of threads they would sum it to other last bits, clip by another factor and drift apart.
bool counts_here(const Parameter& parameter, const Mesh& mesh) {
  bool counts = true;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size() == 1) continue;
    const Placement& placement = parameter.rest_layout()[axis.name()];
    if (!placement.is_shard() && !placement.is_invariant()) {
      throw LayoutError({"grad_norm", parameter.name(), "rests " + placement.to_string() + " on axis " + axis.name(),
                         mesh.where(), "parameters rest in I or S; redistribute the gradient first"});
    }
    counts = counts && (placement.is_shard() || axis.coord() == 0);
  }
  return counts;
}

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
  const auto& slots = state.layout.slots();
  double own = 0;
  // Neighbours that count are summed in one pass: for data parallelism that is the whole buffer.
  for (size_t begin = 0; begin < slots.size();) {
    const bool counts = counts_here(*slots[begin].parameter, mesh);
    size_t end = begin + 1;
    while (end < slots.size() && counts_here(*slots[end].parameter, mesh) == counts) ++end;
    const int64_t stop = end < slots.size() ? slots[end].offset : state.layout.count();
    if (counts) own += sum_of_squares(state.gradients.narrow(0, slots[begin].offset, stop - slots[begin].offset));
    begin = end;
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

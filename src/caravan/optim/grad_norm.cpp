#include "caravan/optim/grad_norm.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/grad_mode.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

enum class Share : uint8_t {
  everywhere,  ///< invariant on every axis: each rank has the whole sum
  here,        ///< sharded on some axis, and this rank is coordinate 0 of the invariant ones
  elsewhere,   ///< sharded on some axis; another rank counts this piece
};

Share share_of(const Parameter& parameter, const Mesh& mesh) {
  bool is_sharded = false;
  bool counts = true;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size() == 1) continue;
    const Placement& placement = parameter.rest_layout()[axis.name()];
    if (!placement.is_shard() && !placement.is_invariant()) {
      throw LayoutError({"grad_norm", parameter.name(), "rests " + placement.to_string() + " on axis " + axis.name(),
                         mesh.where(), "parameters rest in I or S; redistribute the gradient first"});
    }
    is_sharded = is_sharded || placement.is_shard();
    counts = counts && (placement.is_shard() || axis.coord() == 0);
  }
  return !is_sharded ? Share::everywhere : counts ? Share::here : Share::elsewhere;
}

/// In pieces that stay in cache, added up in fp64: one fp32 sum over a large model would lose digits.
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
  double everywhere = 0;
  double here = 0;
  bool any_sharded = false;
  // Neighbours of equal share are summed in one pass: for data parallelism that is the whole buffer.
  for (size_t begin = 0; begin < slots.size();) {
    const Share share = share_of(*slots[begin].parameter, mesh);
    size_t end = begin + 1;
    while (end < slots.size() && share_of(*slots[end].parameter, mesh) == share) ++end;
    const int64_t stop = end < slots.size() ? slots[end].offset : state.layout.count();
    const at::Tensor range = state.gradients.narrow(0, slots[begin].offset, stop - slots[begin].offset);
    if (share == Share::everywhere) everywhere += sum_of_squares(range);
    if (share == Share::here) here += sum_of_squares(range);
    any_sharded = any_sharded || share != Share::everywhere;
    begin = end;
  }
  if (any_sharded) {
    double total = here;
    mesh.world().all_reduce({&here, 1, Dtype::fp64}, {&total, 1, Dtype::fp64}, ReduceOp::sum, "gradient norm");
    everywhere += total;
  }
  return std::sqrt(everywhere);
}

void clip_grad_norm(FlatState& state, double norm, double max_norm) {
  const at::NoGradGuard no_grad;
  if (max_norm > 0 && norm > max_norm) state.gradients.mul_(max_norm / norm);
}

}  // namespace caravan

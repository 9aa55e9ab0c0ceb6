#include "caravan/optim/grad_norm.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "caravan/base/parallel_for.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/engine/flat/tier_sweep.h"
#include "caravan/module/count_kernel.h"
#include "caravan/optim/exact_sum.h"
#include "caravan/optim/kernels.h"

namespace caravan {
namespace {

/// Adds the squares of `rows` rows from row `first` on.
void sum_rows(const at::Tensor& gradient, int64_t first, int64_t rows, int64_t row, double* sums) {
  const auto of = [&](const auto* x) { kernels::sums_of_squares(x + first * row, rows, row, sums); };
  switch (gradient.scalar_type()) {
    case at::kDouble: of(gradient.const_data_ptr<double>()); break;
    case at::kBFloat16: of(static_cast<const kernels::Bf16*>(gradient.const_data_ptr())); break;
    default: of(gradient.const_data_ptr<float>());
  }
}

void add_squares(ExactSum& sum, const at::Tensor& gradient) {
  count_kernel("grad_norm", gradient);
  if (gradient.is_meta() || gradient.numel() == 0) return;
  const int64_t rows = gradient.dim() == 0 ? 1 : gradient.size(0);
  const int64_t row = gradient.numel() / rows;
  constexpr int64_t kAtOnce = 256;  // rows
  std::mutex mutex;
  parallel_for(0, rows, std::max<int64_t>(1, (int64_t{1} << 16) / row), [&](int64_t begin, int64_t end) {
    ExactSum part;
    std::vector<double> squares(static_cast<size_t>(std::min(kAtOnce, end - begin)));
    for (int64_t first = begin; first < end; first += kAtOnce) {
      const int64_t count = std::min(kAtOnce, end - first);
      sum_rows(gradient, first, count, row, squares.data());
      for (int64_t i = 0; i < count; ++i) part.add(squares[static_cast<size_t>(i)]);
    }
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < part.words().size(); ++i) sum.words()[i] += part.words()[i];
  });
}

/// Whether this rank counts a gradient of that layout: each element counts once; on an axis that is I, coordinate 0
/// counts. The other ranks have the same gradient, but on another processor their sums could differ in the last bits,
/// so that they would clip by another factor and drift apart.
bool counts_here(const Layout& rest, const Mesh& mesh, std::string_view apart) {
  return std::ranges::all_of(mesh.axes(), [&](const MeshAxis& axis) {
    const bool is_common = axis.size() > 1 && axis.name() != apart && rest.has(axis.name());
    return !is_common || axis.coord() == 0 || rest[axis.name()].is_shard();
  });
}

}  // namespace

void GradNorm::add(const Slot& slot, const at::Tensor& gradient) {
  const Parameter& parameter = *slot.parameter;
  if (parameter.requires_grad() && counts_here(parameter.sharded_layout(), mesh_, apart_)) add_squares(sum_, gradient);
}

double GradNorm::finish(Communicator& comm) {
  if (comm.size() > 1) {
    auto& words = sum_.words();
    const Buffer all{words.data(), static_cast<int64_t>(words.size()), Dtype::int64};
    comm.all_reduce(all, all, ReduceOp::sum, "gradient norm");
  }
  return std::sqrt(sum_.value());
}

double grad_norm(const FlatState& state, const Mesh& mesh) { return grad_norm(state, mesh, "", mesh.world()); }

double grad_norm(const FlatState& state, const Mesh& mesh, std::string_view apart, Communicator& comm) {
  GradNorm norm(mesh, apart);
  for (const Slot& slot : state.layout.slots()) {
    if (!slot.parameter->requires_grad()) continue;
    norm.add(slot, state.layout.read(state.gradients, *slot.parameter));
  }
  return norm.finish(comm);
}

double sum_of_squares(const at::Tensor& flat) {
  double sum = 0;
  sum_rows(flat, 0, 1, flat.numel(), &sum);
  return sum;
}

double clip_scale(double norm, double max_norm) { return max_norm > 0 && norm > max_norm ? max_norm / norm : 1; }

void scale_gradients(FlatState& state, double scale) {
  if (scale == 1) return;
  const at::NoGradGuard no_grad;
  if (!state.gradients.is_on_disk()) {
    for (const FlatMemory::Piece& piece : state.gradients.pieces()) piece.memory.mul_(scale);
    return;
  }
  count_path("gradients scaled on disk");
  TierSweep sweep(state, Tier::host);
  sweep.start(TierSweep::trained_buckets(state.layout), {{.flat = &state.gradients, .is_written = true}},
              [scale](const TierSweep::Part& part) { part.tensors[0].mul_(scale); });
  sweep.finish();
}

void clip_grad_norm(FlatState& state, double norm, double max_norm) {
  scale_gradients(state, clip_scale(norm, max_norm));
}

}  // namespace caravan

#include "caravan/techniques/data/sync_batch_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan {
namespace {

/// Sums over the ranks. The law gives the backward: each rank's use of the sum has a summand of its gradient.
at::Tensor over_ranks(const at::Tensor& summand, const MeshAxis& axis) {
  return redistribute(summand, Layout{{axis.name(), Partial{}}}, axis, Replicate{}, "batch norm");
}

void check_channels(const at::Tensor& x, const BatchNormState& state) {
  for (const at::Tensor* each : {&state.weight, &state.bias, &state.running_mean, &state.running_var}) {
    if (!each->defined() || (x.dim() >= 2 && each->sizes() == at::IntArrayRef{x.size(1)})) continue;
    throw ShapeError({"sync_batch_norm", "x",
                      fmt::format("is [{}], for a norm of [{}] channels", join(x.sizes()), join(each->sizes())), "",
                      "give [rows, channels, ..]"});
  }
}

}  // namespace

at::Tensor sync_batch_norm(const at::Tensor& x, const BatchNormState& state, const MeshAxis& axis) {
  check_channels(x, state);
  const bool is_half = x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;
  const at::Tensor rows = is_half ? x.to(at::kFloat) : x;
  std::vector<int64_t> per_channel(static_cast<size_t>(x.dim()), 1);
  per_channel[1] = x.size(1);
  std::vector<int64_t> others{0};
  for (int64_t dim = 2; dim < x.dim(); ++dim) others.push_back(dim);
  const auto normalized = [&](const at::Tensor& centered, const at::Tensor& variance) {
    at::Tensor y = centered * (variance + state.eps).rsqrt().view(per_channel);
    if (state.weight.defined()) y = y * state.weight.view(per_channel);
    if (state.bias.defined()) y = y + state.bias.view(per_channel);
    return y.to(x.scalar_type());
  };
  if (!state.is_training && state.running_mean.defined()) {
    return normalized(rows - state.running_mean.view(per_channel), state.running_var.to(rows.scalar_type()));
  }
  // The mean first, then the squares around it: a difference of large sums would lose digits. fp64 represents every
  // count exactly.
  const double own_count = static_cast<double>(x.numel()) / static_cast<double>(std::max<int64_t>(x.size(1), 1));
  const at::Tensor sums = over_ranks(
      at::cat({rows.sum(others).to(at::kDouble), at::full({1}, own_count, rows.options().dtype(at::kDouble))}), axis);
  const double count = sums.detach()[x.size(1)].item<double>();
  if (count < 2) {
    throw ShapeError({"sync_batch_norm", "x", fmt::format("all ranks together have {:.0f} values a channel", count), "",
                      "give at least 2 rows, or call eval()"});
  }
  const at::Tensor mean = (sums.narrow(0, 0, x.size(1)) / count).to(rows.scalar_type());
  const at::Tensor centered = rows - mean.view(per_channel);
  const at::Tensor variance =
      (over_ranks(centered.square().sum(others).to(at::kDouble), axis) / count).to(rows.scalar_type());
  if (state.running_mean.defined()) {
    const at::NoGradGuard no_grad;
    at::Tensor running_mean = state.running_mean, running_var = state.running_var;
    running_mean.lerp_(mean.detach().to(running_mean.scalar_type()), state.momentum);
    running_var.lerp_((variance.detach() * (count / (count - 1))).to(running_var.scalar_type()), state.momentum);
  }
  return normalized(centered, variance);
}

}  // namespace caravan

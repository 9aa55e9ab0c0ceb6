#include "caravan/nn/attention/rope.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/base/error.h"
#include "caravan/base/parallel_for.h"
#include "caravan/module/count_kernel.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/ops.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// The tokens of a batch share the rows of their positions, or have separate ones.
at::Tensor rotated(const at::Tensor& input, const at::Tensor& cosine, const at::Tensor& sine, int sign) {
  const at::Tensor x = input.contiguous();
  at::Tensor y = at::empty_like(x);
  count_kernel("rope", x, y);
  if (x.is_meta()) return y;
  const int64_t rows = cosine.size(0);
  const int64_t heads = x.size(2);
  const int64_t width = x.size(3);
  const int64_t half = cosine.size(1);
  with_dtype("rope", x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    using C = kernels::Compute<T>;
    parallel_for(0, x.size(0) * x.size(1), 64, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        const int64_t angle = token % rows * half;
        const int64_t at = token * heads * width;
        kernels::rotate(data_of<T>(x) + at, data_of<C>(cosine) + angle, data_of<C>(sine) + angle, data_of<T>(y) + at,
                        heads, half, width, static_cast<C>(sign));
      }
    });
  });
  return y;
}

struct Rope : Function<Rope> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const RopeAngles& angles) {
    ctx->save_for_backward({angles.cosine, angles.sine});
    return rotated(x, angles.cosine, angles.sine, 1);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {rotated(grads[0], saved[0], saved[1], -1), {}};
  }
};

}  // namespace

void RopeTable::fill(int64_t positions, const at::TensorOptions& options) {
  const at::NoGradGuard no_grad;
  const int64_t half = settings_.rotated / 2;
  at::Tensor cosine = at::empty({positions, half}, options.dtype(at::kDouble));
  at::Tensor sine = at::empty({positions, half}, options.dtype(at::kDouble));
  for (int64_t i = 0; i < half && !cosine.is_meta(); ++i) {
    const float frequency = frequencies_.radians[static_cast<size_t>(i)];
    for (int64_t position = 0; position < positions; ++position) {
      const float angle = static_cast<float>(position) * frequency;
      cosine.data_ptr<double>()[position * half + i] = std::cos(double{angle}) * frequencies_.factor;
      sine.data_ptr<double>()[position * half + i] = std::sin(double{angle}) * frequencies_.factor;
    }
  }
  cosine_ = cosine.to(options.dtype());
  sine_ = sine.to(options.dtype());
}

RopeAngles RopeTable::angles(const at::Tensor& positions, int64_t count, const at::Tensor& x, int64_t length) {
  const bool is_given = positions.defined() && !positions.is_meta() && positions.numel() > 0;
  if (is_given && positions.min().item<int64_t>() < 0) {
    throw DataError({"rope", "", fmt::format("position {}", positions.min().item<int64_t>()), "",
                     "number the tokens of a text from 0 on"});
  }
  const int64_t need = is_given ? positions.max().item<int64_t>() + 1 : count;
  const auto options = at::TensorOptions().dtype(compute_type(x.scalar_type())).device(x.device());
  const bool fits = cosine_.defined() && cosine_.dtype() == options.dtype() && cosine_.device() == x.device();
  const int64_t have = fits ? cosine_.size(0) : 0;
  const bool changes = settings_.scaling.depends_on_length() || frequencies_.radians.empty();
  RopeFrequencies wanted = changes ? rope_frequencies(settings_, length > 0 ? length : need) : RopeFrequencies{};
  if (changes && wanted.radians != frequencies_.radians) {
    frequencies_ = std::move(wanted);
    fill(need, options);
  } else if (need > have) {
    fill(std::max(need, 2 * have), options);  // doubles: generation adds one position at a time
  }
  if (!positions.defined()) return {cosine_.narrow(0, 0, count), sine_.narrow(0, 0, count)};
  const at::Tensor rows = positions.flatten();
  return {at::index_select(cosine_, 0, rows), at::index_select(sine_, 0, rows)};
}

at::Tensor rope(const at::Tensor& x, const RopeAngles& angles, const ForwardContext& context, std::string_view what) {
  static const OpType kType{"bsnw->bsnw", "w", {{0}}};
  check_device("rope", x);
  if (angles.cosine.defined() && angles.cosine.size(0) != x.size(1) && angles.cosine.size(0) != x.size(0) * x.size(1)) {
    throw ShapeError({"rope", std::string(what),
                      fmt::format("{} angles for {} sequences of {}", angles.cosine.size(0), x.size(0), x.size(1)), "",
                      "give a position for each token of a sequence, or of the batch"});
  }
  at::Tensor y = Rope::apply(x, angles);
  record_layout(context, kType, y, {x}, what);
  return y;
}

}  // namespace caravan

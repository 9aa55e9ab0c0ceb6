#include "caravan/nn/rope.h"

#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "caravan/nn/ops.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

at::Tensor rotated(const at::Tensor& input, const at::Tensor& cosine, const at::Tensor& sine, int sign) {
  const at::Tensor x = input.contiguous();
  at::Tensor y = at::empty_like(x);
  if (x.is_meta()) return y;
  const int64_t sequence = x.size(1);
  const int64_t heads = x.size(2);
  const int64_t half = x.size(3) / 2;
  with_dtype("rope", x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    using C = kernels::Compute<T>;
    at::parallel_for(0, x.size(0) * sequence, 64, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        const int64_t angle = token % sequence * half;
        const int64_t at = token * heads * 2 * half;
        kernels::rotate(data_of<T>(x) + at, data_of<C>(cosine) + angle, data_of<C>(sine) + angle, data_of<T>(y) + at,
                        heads, half, static_cast<C>(sign));
      }
    });
  });
  return y;
}

struct Rope : Function<Rope> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cosine,
                            const at::Tensor& sine) {
    ctx->save_for_backward({cosine, sine});
    return rotated(x, cosine, sine, 1);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {rotated(grads[0], saved[0], saved[1], -1), {}, {}};
  }
};

}  // namespace

void RopeTable::grow(int64_t positions, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  at::Tensor cosine = at::empty({positions, half_}, at::kDouble);
  at::Tensor sine = at::empty({positions, half_}, at::kDouble);
  for (int64_t i = 0; i < half_; ++i) {
    const auto frequency =
        static_cast<float>(1 / std::pow(theta_, static_cast<double>(2 * i) / static_cast<double>(2 * half_)));
    for (int64_t position = 0; position < positions; ++position) {
      const float angle = static_cast<float>(position) * frequency;
      cosine.data_ptr<double>()[position * half_ + i] = std::cos(double{angle});
      sine.data_ptr<double>()[position * half_ + i] = std::sin(double{angle});
    }
  }
  cosine_ = cosine.to(type);
  sine_ = sine.to(type);
}

std::pair<at::Tensor, at::Tensor> RopeTable::rows(int64_t first, int64_t count, at::ScalarType type) {
  const int64_t have = cosine_.defined() && cosine_.scalar_type() == type ? cosine_.size(0) : 0;
  if (first + count > have)
    grow(std::max(first + count, 2 * have), type);  // doubles: generation adds one position at a time
  return {cosine_.narrow(0, first, count), sine_.narrow(0, first, count)};
}

at::Tensor rope(const at::Tensor& x, RopeTable& table, int64_t first) {
  check_device("rope", x);
  if (x.is_meta()) {
    const at::Tensor none = at::empty({0}, x.options());
    return Rope::apply(x, none, none);
  }
  const auto [cosine, sine] = table.rows(first, x.size(1), compute_type(x.scalar_type()));
  return Rope::apply(x, cosine, sine);
}

}  // namespace caravan

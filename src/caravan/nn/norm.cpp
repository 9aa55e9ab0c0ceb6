#include "caravan/nn/norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/nn/ops.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// Rows per partial sum of the weight gradient: constant, so the result does not depend on the number of threads.
constexpr int64_t kRowsPerPart = 256;

struct RmsNormalised : Function<RmsNormalised> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight_in,
                            double epsilon) {
    const at::Tensor x = input.contiguous();
    const at::Tensor weight = weight_in.contiguous();
    const int64_t width = weight.numel();
    const int64_t rows = x.numel() / width;
    at::Tensor rstd = at::empty({rows}, x.options().dtype(compute_type(x.scalar_type())));
    at::Tensor y = at::empty_like(x);
    ctx->save_for_backward({x, weight, rstd});
    if (x.is_meta()) return y;
    with_dtype("rms_norm", x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      at::parallel_for(0, rows, kRowsPerPart, [&](int64_t begin, int64_t end) {
        kernels::rms_norm(data_of<T>(x) + begin * width, data_of<T>(weight), data_of<T>(y) + begin * width,
                          data_of<kernels::Compute<T>>(rstd) + begin, end - begin, width, epsilon);
      });
    });
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& rstd = saved[2];
    const at::Tensor dy = grads[0].contiguous();
    const int64_t width = weight.numel();
    const int64_t rows = rstd.numel();
    at::Tensor dx = at::empty_like(x);
    if (x.is_meta()) return {dx, at::empty_like(weight), {}};
    const int64_t parts = (rows + kRowsPerPart - 1) / kRowsPerPart;
    std::vector<double> dweight(static_cast<size_t>(std::max<int64_t>(parts, 1) * width), 0);
    with_dtype("rms_norm", x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) {
          const int64_t row = part * kRowsPerPart;
          const int64_t at = row * width;
          kernels::rms_norm_backward(data_of<T>(dy) + at, data_of<T>(x) + at, data_of<T>(weight),
                                     data_of<kernels::Compute<T>>(rstd) + row, data_of<T>(dx) + at,
                                     dweight.data() + part * width, std::min(kRowsPerPart, rows - row), width);
        }
      });
    });
    for (int64_t i = width; i < parts * width; ++i) {
      dweight[static_cast<size_t>(i % width)] += dweight[static_cast<size_t>(i)];
    }
    at::Tensor total = at::empty({width}, at::kDouble);
    std::copy_n(dweight.begin(), width, total.data_ptr<double>());
    return {dx, total.to(weight.scalar_type()), {}};
  }
};

}  // namespace

at::Tensor rms_normalised(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  check_device("rms_norm", x);
  if (weight.dim() != 1 || x.dim() < 1 || x.size(-1) != weight.size(0) || x.scalar_type() != weight.scalar_type()) {
    throw ShapeError({"rms_norm", "",
                      fmt::format("rows of {} {} and a weight of {} {}", x.dim() < 1 ? 0 : x.size(-1),
                                  c10::toString(x.scalar_type()), weight.numel(), c10::toString(weight.scalar_type())),
                      "", "use the same width and dtype for both"});
  }
  return RmsNormalised::apply(x, weight, epsilon);
}

LayerNorm::LayerNorm(int64_t width, double epsilon)
    : epsilon_(epsilon),
      weight_(register_parameter("weight", {.shape = {width}, .init = {Init::Kind::ones}, .decays = false})),
      bias_(register_parameter("bias", {.shape = {width}, .init = {Init::Kind::zeros}, .decays = false})) {}

at::Tensor LayerNorm::forward(const at::Tensor& input, const ForwardContext& /*context*/) {
  const at::Tensor& weight = weight_.compute();
  if (input.is_meta()) return shape_only(input, weight, bias_.compute(), input.sizes());
  return at::layer_norm(input, weight.sizes(), weight, bias_.compute(), epsilon_);
}

RmsNorm::RmsNorm(int64_t width, double epsilon)
    : epsilon_(epsilon),
      weight_(register_parameter("weight", {.shape = {width}, .init = {Init::Kind::ones}, .decays = false})) {}

at::Tensor RmsNorm::forward(const at::Tensor& input, const ForwardContext& /*context*/) {
  return rms_normalised(input, weight_.compute(), epsilon_);
}

}  // namespace caravan

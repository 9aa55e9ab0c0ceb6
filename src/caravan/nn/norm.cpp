#include "caravan/nn/norm.h"

#include <algorithm>
#include <array>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/module/count_kernel.h"
#include "caravan/nn/accumulate_grad.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/ops.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// Rows per partial sum of the weight gradient: constant, so the result does not depend on the number of threads.
constexpr int64_t kRowsPerPart = 256;

struct NativeLayerNorm : Function<NativeLayerNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                            double epsilon, Parameter& weight, Parameter& bias) {
    will_accumulate(ctx, {&weight, &bias});
    auto [y, mean, rstd] = at::native_layer_norm(x, w.sizes(), w, b, epsilon);
    ctx->save_for_backward({x, w.detach(), b.detach(), mean, rstd});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list gradients(6);
    if (!grads[0].defined()) return gradients;
    const variable_list saved = ctx->get_saved_variables();
    const std::array<bool, 3> needed{ctx->needs_input_grad(0), ctx->needs_input_grad(1), ctx->needs_input_grad(2)};
    auto [dx, dweight, dbias] = at::native_layer_norm_backward(grads[0].contiguous(), saved[0], saved[1].sizes(),
                                                               saved[3], saved[4], saved[1], saved[2], needed);
    gradients[0] = dx;
    const std::vector<Parameter*> parameters = accumulations_of(ctx);
    if (needed[1]) parameters[0]->accumulate_grad(dweight);
    if (needed[2]) parameters[1]->accumulate_grad(dbias);
    return gradients;
  }
};

struct NativeRmsNorm : Function<NativeRmsNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const at::Tensor& w, double epsilon,
                            Parameter& parameter) {
    const at::Tensor x = input.contiguous();
    const at::Tensor weight = w.detach().contiguous();
    const int64_t width = weight.numel();
    const int64_t rows = width == 0 ? 0 : x.numel() / width;
    at::Tensor rstd = at::empty({rows}, x.options().dtype(compute_type(x.scalar_type())));
    at::Tensor y = at::empty_like(x);
    will_accumulate(ctx, {&parameter});
    ctx->save_for_backward({x, weight, rstd});
    count_kernel("rms_norm", x, y);
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
    if (!grads[0].defined()) return variable_list(4);
    const variable_list saved = ctx->get_saved_variables();
    at::Tensor dx = at::empty_like(saved[0]);
    const at::Tensor dweight = both(grads[0].contiguous(), saved[0], saved[1], saved[2], dx);
    if (ctx->needs_input_grad(1)) accumulations_of(ctx)[0]->accumulate_grad(dweight);
    return {dx, {}, {}, {}};
  }

 private:
  /// Writes dx, returns the gradient of the weight.
  static at::Tensor both(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                         const at::Tensor& dx) {
    const at::ScalarType type = compute_type(weight.scalar_type());
    const int64_t width = weight.numel();
    count_kernel("rms_norm backward", dy, x, dx);
    if (x.is_meta()) return at::empty({width}, x.options().dtype(at::kDouble)).to(type);
    const int64_t rows = rstd.numel();
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
    return total.to(type);
  }
};

void check_norm(const char* op, const at::Tensor& x, const Parameter& parameter) {
  check_device(op, x);
  const at::Tensor& weight = parameter.compute();
  if (weight.dim() == 1 && x.dim() >= 1 && x.size(-1) == weight.size(0) && x.scalar_type() == weight.scalar_type()) {
    return;
  }
  throw ShapeError({op, parameter.name(),
                    fmt::format("rows of {} {} and a weight of {} {}", x.dim() < 1 ? 0 : x.size(-1),
                                c10::toString(x.scalar_type()), weight.numel(), c10::toString(weight.scalar_type())),
                    "", "use the same width and dtype for both"});
}

/// The labels of a norm with `num_parameters`; it needs whole features unless their statistics are reduced.
OpType norm_type(int num_parameters, bool is_split) {
  const char* whole = is_split ? "" : "f";
  return num_parameters == 2 ? OpType{"bsf,f,f->bsf", whole, {{1}, {2}}} : OpType{"bsf,f->bsf", whole, {{1}}};
}

}  // namespace

at::Tensor layer_norm(const at::Tensor& x, Parameter& weight, Parameter& bias, double epsilon) {
  check_norm("layer_norm", x, weight);
  return NativeLayerNorm::apply(x, weight.compute(), bias.compute(), epsilon, weight, bias);
}

at::Tensor rms_norm(const at::Tensor& x, Parameter& weight, double epsilon) {
  check_norm("rms_norm", x, weight);
  return NativeRmsNorm::apply(x, weight.compute(), epsilon, weight);
}

LayerNorm::LayerNorm(int64_t width, double epsilon)
    : epsilon_(epsilon),
      weight_(register_parameter("weight", {.shape = {width}, .init = {Init::Kind::ones}, .decays = false})),
      bias_(register_parameter("bias", {.shape = {width}, .init = {Init::Kind::zeros}, .decays = false})) {}

at::Tensor LayerNorm::forward(const at::Tensor& input, const ForwardContext& context) {
  at::Tensor y = reduction_ == nullptr ? layer_norm(input, weight_, bias_, epsilon_)
                                       : split_norm(input, weight_, &bias_, epsilon_, reduction_);
  if (context.layouts != nullptr) {
    record_layout(context, norm_type(2, reduction_ != nullptr), y, {input, weight_, bias_}, name());
  }
  return y;
}

RmsNorm::RmsNorm(int64_t width, double epsilon)
    : epsilon_(epsilon),
      weight_(register_parameter("weight", {.shape = {width}, .init = {Init::Kind::ones}, .decays = false})) {}

at::Tensor RmsNorm::forward(const at::Tensor& input, const ForwardContext& context) {
  at::Tensor y = reduction_ == nullptr ? rms_norm(input, weight_, epsilon_)
                                       : split_norm(input, weight_, nullptr, epsilon_, reduction_);
  if (context.layouts != nullptr) {
    record_layout(context, norm_type(1, reduction_ != nullptr), y, {input, weight_}, name());
  }
  return y;
}

}  // namespace caravan

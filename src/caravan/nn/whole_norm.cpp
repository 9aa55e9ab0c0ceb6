#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/parallel_for.h"
#include "caravan/base/text.h"
#include "caravan/module/count_kernel.h"
#include "caravan/nn/accumulate_grad.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/norm.h"
#include "caravan/nn/product/norm_kernels.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// Rows per partial sum of the gradients of the parameters: constant, so the result does not depend on the number of
/// threads.
constexpr int64_t kRowsPerPart = 256;

const char* name_of_norm(bool has_bias) { return has_bias ? "layer_norm" : "rms_norm"; }

/// Null if `all` is undefined.
template <class T>
T* at_row(const at::Tensor& all, int64_t row, int64_t width) {
  return all.defined() ? data_of<T>(all) + row * width : nullptr;
}

/// All contiguous. Undefined: branch and sum, if nothing is added; bias and mean of rms_norm.
struct WholeRows {
  at::Tensor x{}, branch{}, weight{}, bias{}, sum{}, y{}, mean{}, rstd{};

  void compute(double epsilon) const {
    count_kernel(name_of_norm(bias.defined()), x, branch, sum, y);
    if (x.is_meta()) return;
    const int64_t width = weight.numel();
    with_dtype("norm", x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using C = kernels::Compute<T>;
      parallel_for(0, rstd.numel(), kRowsPerPart, [&](int64_t begin, int64_t end) {
        kernels::norm<T>({.x = at_row<T>(x, begin, width),
                          .branch = at_row<T>(branch, begin, width),
                          .weight = data_of<T>(weight),
                          .bias = at_row<T>(bias, 0, width),
                          .sum = at_row<T>(sum, begin, width),
                          .y = at_row<T>(y, begin, width),
                          .mean = at_row<C>(mean, begin, 1),
                          .rstd = at_row<C>(rstd, begin, 1)},
                         end - begin, width, epsilon);
      });
    });
  }
};

/// All contiguous. Undefined: mean of rms_norm; dsum, if it is 0.
struct WholeGradient {
  at::Tensor dy, v, weight, mean, rstd, dsum, dv;

  /// Writes dv. Returns the gradient of the weight, and below it that of a bias, in fp64.
  at::Tensor compute() const {
    count_kernel(mean.defined() ? "layer_norm backward" : "rms_norm backward", dy, v, dsum, dv);
    const int64_t width = weight.numel();
    const int64_t size = mean.defined() ? 2 * width : width;
    at::Tensor total = at::empty({size}, v.options().dtype(at::kDouble));
    if (v.is_meta()) return total;
    const int64_t rows = rstd.numel();
    const int64_t parts = (rows + kRowsPerPart - 1) / kRowsPerPart;
    std::vector<double> sums(static_cast<size_t>(std::max<int64_t>(parts, 1) * size), 0);
    with_dtype("norm", v.scalar_type(), [&](auto type) {
      using T = decltype(type);
      using C = kernels::Compute<T>;
      parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) {
          const int64_t row = part * kRowsPerPart;
          kernels::norm_backward<T>({.dy = at_row<T>(dy, row, width),
                                     .v = at_row<T>(v, row, width),
                                     .weight = data_of<T>(weight),
                                     .mean = at_row<C>(mean, row, 1),
                                     .rstd = at_row<C>(rstd, row, 1),
                                     .dsum = at_row<T>(dsum, row, width),
                                     .dv = at_row<T>(dv, row, width)},
                                    sums.data() + part * size, std::min(kRowsPerPart, rows - row), width);
        }
      });
    });
    for (int64_t i = size; i < parts * size; ++i) sums[static_cast<size_t>(i % size)] += sums[static_cast<size_t>(i)];
    std::copy_n(sums.begin(), size, total.data_ptr<double>());
    return total;
  }
};

/// {v, y} if `keeps_sum`, else {y}: y is the norm of v = x + branch.
struct WholeNorm : Function<WholeNorm> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& branch,
                               double epsilon, Parameter& of_weight, Parameter* of_bias, bool keeps_sum) {
    WholeRows all{.x = x.contiguous(), .weight = weight.detach().contiguous()};
    const int64_t width = all.weight.numel();
    const int64_t rows = width == 0 ? 0 : x.numel() / width;
    const auto statistic = [&] { return at::empty({rows}, x.options().dtype(compute_type(x.scalar_type()))); };
    if (branch) {
      all.branch = branch->contiguous();
      all.sum = at::empty_like(all.x);
    }
    if (bias) {
      all.bias = bias->detach().contiguous();
      all.mean = statistic();
    }
    all.rstd = statistic();
    all.y = at::empty_like(all.x);
    all.compute(epsilon);
    will_accumulate(ctx, {&of_weight, of_bias});
    ctx->saved_data["keeps_sum"] = keeps_sum;
    ctx->saved_data["has_branch"] = branch.has_value();
    ctx->save_for_backward({branch ? all.sum : all.x, all.weight, all.mean, all.rstd});
    if (!keeps_sum) return {all.y};
    return {branch ? all.sum : x, all.y};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list gradients(8);
    const bool keeps_sum = ctx->saved_data["keeps_sum"].toBool();
    const variable_list saved = ctx->get_saved_variables();
    const std::vector<Parameter*>& parameters = accumulations_of(ctx);
    const at::Tensor& dy = grads.back();
    at::Tensor dv = keeps_sum ? grads.front() : at::Tensor();
    if (dy.defined()) {
      const WholeGradient all{.dy = dy.contiguous(),
                              .v = saved[0],
                              .weight = saved[1],
                              .mean = saved[2],
                              .rstd = saved[3],
                              .dsum = dv.defined() ? dv.contiguous() : dv,
                              .dv = at::empty_like(saved[0])};
      const at::Tensor total = all.compute();
      const int64_t width = all.weight.numel();
      for (int64_t i = 0; i < (parameters[1] == nullptr ? 1 : 2); ++i) {
        if (!ctx->needs_input_grad(static_cast<size_t>(1 + i))) continue;
        parameters[static_cast<size_t>(i)]->accumulate_grad(
            total.narrow(0, i * width, width).to(compute_type(dy.scalar_type())));
      }
      dv = all.dv;
    }
    gradients[0] = dv;
    if (ctx->saved_data["has_branch"].toBool()) gradients[3] = dv;
    return gradients;
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

variable_list whole_norm(const at::Tensor& x, const at::Tensor& branch, Parameter& weight, Parameter* bias,
                         double epsilon, bool keeps_sum) {
  const char* op = name_of_norm(bias != nullptr);
  check_norm(op, x, weight);
  if (bias != nullptr) check_norm(op, x, *bias);
  const auto given = [](const at::Tensor& tensor) { return tensor.defined() ? std::optional(tensor) : std::nullopt; };
  return WholeNorm::apply(x, weight.compute(), given(bias != nullptr ? bias->compute() : at::Tensor()), given(branch),
                          epsilon, weight, bias, keeps_sum);
}

}  // namespace

at::Tensor layer_norm(const at::Tensor& x, Parameter& weight, Parameter& bias, double epsilon) {
  return whole_norm(x, {}, weight, &bias, epsilon, /*keeps_sum=*/false).front();
}

at::Tensor rms_norm(const at::Tensor& x, Parameter& weight, double epsilon) {
  return whole_norm(x, {}, weight, nullptr, epsilon, /*keeps_sum=*/false).front();
}

NormedSum add_norm(const at::Tensor& x, const at::Tensor& branch, Parameter& weight, Parameter* bias, double epsilon) {
  if (branch.defined() && (branch.sizes() != x.sizes() || branch.scalar_type() != x.scalar_type())) {
    throw ShapeError({"add_norm", weight.name(),
                      fmt::format("adds [{}] {} to [{}] {}", join(branch.sizes()), c10::toString(branch.scalar_type()),
                                  join(x.sizes()), c10::toString(x.scalar_type())),
                      "", "use the same shape and dtype for both"});
  }
  variable_list both = whole_norm(x, branch, weight, bias, epsilon, /*keeps_sum=*/true);
  return {std::move(both[0]), std::move(both[1])};
}

}  // namespace caravan

#include <vector>

#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>

#include "caravan/nn/accumulate_grad.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/norm.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// y = n w + b with n = (x - mean) / sqrt(variance + epsilon); without a bias the mean is taken as 0. Composed of
/// ATen's functions, in the compute type.
struct SplitNorm : Function<SplitNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const at::Tensor& w,
                            const std::optional<at::Tensor>& b, double epsilon, Parameter& weight, Parameter* bias,
                            const std::shared_ptr<RowReduction>& reduction) {
    const at::ScalarType type = compute_type(input.scalar_type());
    const auto width = static_cast<double>(weight.global_shape().back());
    const at::Tensor x = input.to(type);
    // In fp64 the difference of the two sums loses nothing that fp32 could hold.
    at::Tensor sums = at::stack({x.sum(-1, true, at::kDouble), x.to(at::kDouble).square().sum(-1, true)});
    reduction->sum(sums);
    const at::Tensor mean = bias == nullptr ? at::zeros_like(sums[0]) : sums[0] / width;
    const at::Tensor rstd = at::rsqrt(sums[1] / width - mean.square() + epsilon).to(type);
    const at::Tensor normalised = (x - mean.to(type)) * rstd;
    will_accumulate(ctx, {&weight, bias});
    ctx->saved_data["reduction"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(reduction));
    ctx->saved_data["width"] = width;
    ctx->save_for_backward({normalised, rstd, w.detach()});
    at::Tensor y = normalised * w.to(type);
    if (b.has_value()) y = y + b->to(type);
    return y.to(input.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list gradients(7);
    if (!grads[0].defined()) return gradients;
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& n = saved[0];
    const at::Tensor dy = grads[0].to(n.scalar_type());
    const std::vector<Parameter*> parameters = accumulations_of(ctx);
    if (ctx->needs_input_grad(0)) {
      const auto width = ctx->saved_data["width"].toDouble();
      const at::Tensor dn = dy * saved[2].to(n.scalar_type());
      at::Tensor sums = at::stack({dn.sum(-1, true), (dn * n).sum(-1, true)});
      static_cast<const Held&>(*ctx->saved_data["reduction"].toCapsule()).reduction->sum(sums);
      at::Tensor dx = dn - n * (sums[1] / width);
      if (parameters[1] != nullptr) dx = dx - sums[0] / width;
      gradients[0] = (dx * saved[1]).to(grads[0].scalar_type());
    }
    const auto over_rows = [](const at::Tensor& x) { return x.flatten(0, -2).sum(0); };
    if (ctx->needs_input_grad(1)) parameters[0]->accumulate_grad(over_rows(dy * n));
    if (parameters[1] != nullptr && ctx->needs_input_grad(2)) parameters[1]->accumulate_grad(over_rows(dy));
    return gradients;
  }

 private:
  struct Held : torch::CustomClassHolder {
    explicit Held(std::shared_ptr<RowReduction> reduction_) : reduction(std::move(reduction_)) {}
    std::shared_ptr<RowReduction> reduction;
  };
};

}  // namespace

at::Tensor split_norm(const at::Tensor& x, Parameter& weight, Parameter* bias, double epsilon,
                      const std::shared_ptr<RowReduction>& reduction) {
  check_device("norm", x);
  const auto b = bias == nullptr ? std::nullopt : std::optional(bias->compute());
  return SplitNorm::apply(x, weight.compute(), b, epsilon, weight, bias, reduction);
}

}  // namespace caravan

#include "caravan/nn/product.h"

#include <optional>
#include <string_view>

#include <ATen/Parallel.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// torch's entry to oneDNN's product of dense tensors; not among its C++ functions, only behind its dispatcher.
using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                             c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
using Entry = c10::TypedOperatorHandle<Signature>;

const std::optional<Entry>& onednn() {
  static const std::optional<Entry> entry = []() -> std::optional<Entry> {
    const auto schema = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!schema.has_value() || !schema->hasKernelForDispatchKey(c10::DispatchKey::CPU)) return std::nullopt;
    return schema->typed<Signature>();
  }();
  return entry;
}

constexpr int64_t kFewRows = 16;  ///< below, preparing the call costs more than it wins

bool suits_onednn(const at::Tensor& a, int64_t rows) {
  return a.is_cpu() && a.scalar_type() == at::kFloat && rows >= kFewRows && a.numel() > 0 && onednn().has_value();
}

at::Tensor call(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias) {
  at::internal::lazy_init_num_threads();  // else oneDNN, called first on a new thread, would take all cores
  return onednn()->call(a, b, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

struct Linear2d : Function<Linear2d> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["bias"] = bias.has_value();
    return call(x, weight, bias);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor dy = grads[0].contiguous();
    variable_list gradients(3);
    if (ctx->needs_input_grad(0)) gradients[0] = product(dy, saved[1].t());
    if (ctx->needs_input_grad(1)) gradients[1] = product(dy.t(), saved[0].t());
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) gradients[2] = dy.sum(0);
    return gradients;
  }
};

}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (suits_onednn(a, a.size(0)) && b.numel() > 0) return call(a, b, std::nullopt);
  return at::mm(a, b.t());
}

at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const int64_t width = weight.size(1);
  const bool fits =
      x.dim() >= 2 && x.size(-1) == width && weight.scalar_type() == x.scalar_type() && weight.numel() > 0 && width > 0;
  if (!fits || !suits_onednn(x, x.numel() / width)) return at::linear(x, weight, bias);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  const std::optional<at::Tensor> given = bias.defined() ? std::optional(bias) : std::nullopt;
  return Linear2d::apply(x.reshape({-1, width}), weight, given).view(shape);
}

}  // namespace caravan

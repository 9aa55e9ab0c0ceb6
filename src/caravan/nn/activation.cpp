#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/base/error.h"
#include "caravan/base/parallel_for.h"
#include "caravan/base/text.h"
#include "caravan/module/count_kernel.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/ops.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// Calls `kernel` with pointers to the same range of all tensors, which are contiguous and of equal size and dtype, and
/// with its length.
template <class Kernel, class... Others>
void for_elements(const char* op, const Kernel& kernel, const at::Tensor& first, const Others&... others) {
  constexpr int64_t kGrain = int64_t{1} << 15;  // least number of elements per thread
  count_kernel(op, first, others...);
  if (first.is_meta()) return;
  with_dtype(op, first.scalar_type(), [&](auto type) {
    using T = decltype(type);
    parallel_for(0, first.numel(), kGrain, [&](int64_t begin, int64_t end) {
      kernel(data_of<T>(first) + begin, data_of<T>(others) + begin..., end - begin);
    });
  });
}

struct TanhGelu : Function<TanhGelu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, bool has_backward) {
    const at::Tensor x = input.contiguous();
    at::Tensor y = at::empty_like(x);
    if (has_backward) {
      at::Tensor slope = at::empty_like(x);
      for_elements(
          "gelu", [](auto... arguments) { kernels::gelu(arguments...); }, x, y, slope);
      ctx->save_for_backward({slope});
    } else {
      for_elements(
          "gelu", [](const auto* from, auto* to, int64_t count) { kernels::gelu(from, to, /*slope=*/{}, count); }, x,
          y);
    }
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor slope = ctx->get_saved_variables()[0];
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor dx = at::empty_like(slope);
    for_elements(
        "gelu", [](auto... arguments) { kernels::gelu_backward(arguments...); }, dy, slope, dx);
    return {dx, at::Tensor()};
  }
};

struct Swiglu : Function<Swiglu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_in, const at::Tensor& up_in) {
    const at::Tensor gate = gate_in.contiguous();
    const at::Tensor up = up_in.contiguous();
    ctx->save_for_backward({gate, up});
    at::Tensor y = at::empty_like(gate);
    for_elements(
        "swiglu", [](auto... arguments) { kernels::swiglu(arguments...); }, gate, up, y);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& gate = saved[0];
    const at::Tensor& up = saved[1];
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor dgate = at::empty_like(gate);
    at::Tensor dup = at::empty_like(up);
    for_elements(
        "swiglu", [](auto... arguments) { kernels::swiglu_backward(arguments...); }, dy, gate, up, dgate, dup);
    return {dgate, dup};
  }
};

at::Tensor value_of(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::gelu_tanh: return TanhGelu::apply(x, at::GradMode::is_enabled() && x.requires_grad());
    case Activation::gelu: return at::gelu(x);
    case Activation::relu: return at::relu(x);
    case Activation::silu: break;
  }
  return at::silu(x);
}

}  // namespace

at::Tensor activated(Activation activation, const at::Tensor& x, const ForwardContext& context, std::string_view what) {
  static const OpType kType{"bsm->bsm"};
  check_device("activation", x);
  at::Tensor y = value_of(activation, x);
  record_layout(context, kType, y, {x}, what);
  return y;
}

at::Tensor gated(Activation activation, const at::Tensor& gate, const at::Tensor& up, const ForwardContext& context,
                 std::string_view what) {
  static const OpType kType{"bsm,bsm->bsm", "", {{1}}};
  check_device("gated activation", gate);
  if (gate.sizes() != up.sizes() || gate.scalar_type() != up.scalar_type()) {
    throw ShapeError(
        {"gated activation", std::string(what),
         fmt::format("gate [{}] and up [{}] differ in shape or dtype", join(gate.sizes()), join(up.sizes())), "",
         "split gate and up in the same way"});
  }
  at::Tensor y = activation == Activation::silu ? Swiglu::apply(gate, up) : value_of(activation, gate) * up;
  record_layout(context, kType, y, {gate, up}, what);
  return y;
}

at::Tensor scaled(const at::Tensor& x, double factor, const ForwardContext& context, std::string_view what) {
  static const OpType kType{"bsf->bsf", "", {{0}}};
  at::Tensor y = x * factor;
  record_layout(context, kType, y, {x}, what);
  return y;
}

at::Tensor soft_capped(const at::Tensor& x, double cap) { return cap == 0 ? x : at::tanh(x / cap) * cap; }

}  // namespace caravan

#include "caravan/nn/ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct ShapeOnly : Function<ShapeOnly> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b, const at::Tensor& c,
                            const std::vector<int64_t>& shape) {
    ctx->save_for_backward({a, b, c});
    return at::empty(shape, a.options());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& /*grads*/) {
    variable_list gradients;
    for (const at::Tensor& input : ctx->get_saved_variables()) gradients.push_back(at::empty_like(input));
    gradients.emplace_back();
    return gradients;
  }
};

}  // namespace

at::Tensor shape_only(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, at::IntArrayRef shape) {
  return ShapeOnly::apply(a, b, c, shape.vec());
}

void check_device(std::string_view op, const at::Tensor& tensor) {
  if (tensor.is_cpu() || tensor.is_meta()) return;
  throw UsageError({std::string(op), "", fmt::format("has no kernel for device {}", tensor.device().str()), "",
                    "keep the model on the CPU"});
}

void refuse_dtype(std::string_view op, at::ScalarType type) {
  throw UsageError(
      {std::string(op), "", fmt::format("does not support {}", c10::toString(type)), "", "compute in fp32 or bf16"});
}

}  // namespace caravan

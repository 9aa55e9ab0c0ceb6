#include "caravan/nn/norm.h"

#include "caravan/nn/ops.h"

namespace caravan {
namespace {

/// The labels of a norm with `num_parameters`; it needs whole features unless their statistics are reduced.
OpType norm_type(int num_parameters, bool is_split, bool of_heads) {
  const char* whole = is_split ? "" : "f";
  if (of_heads)
    return num_parameters == 2 ? OpType{"bsnf,f,f->bsnf", "f", {{1}, {2}}} : OpType{"bsnf,f->bsnf", "f", {{1}}};
  return num_parameters == 2 ? OpType{"bsf,f,f->bsf", whole, {{1}, {2}}} : OpType{"bsf,f->bsf", whole, {{1}}};
}

}  // namespace

Norm::Norm(int64_t width, double epsilon, bool has_bias)
    : epsilon_(epsilon),
      weight_(register_parameter("weight", {.shape = {width}, .init = {Init::Kind::ones}, .decays = false})),
      bias_(has_bias ? &register_parameter("bias", {.shape = {width}, .init = {Init::Kind::zeros}, .decays = false})
                     : nullptr) {}

at::Tensor Norm::forward(const at::Tensor& input, const ForwardContext& context) {
  const bool is_split = reduction_ != nullptr;
  const bool of_heads = input.dim() == 4;
  at::Tensor y = is_split           ? split_norm(input, weight_, bias_, epsilon_, reduction_)
                 : bias_ != nullptr ? layer_norm(input, weight_, *bias_, epsilon_)
                                    : rms_norm(input, weight_, epsilon_);
  if (bias_ != nullptr) {
    record_layout(context, norm_type(2, is_split, of_heads), y, {input, weight_, *bias_}, name());
  } else {
    record_layout(context, norm_type(1, is_split, of_heads), y, {input, weight_}, name());
  }
  return y;
}

NormedSum Norm::add_and_run(const at::Tensor& x, const at::Tensor& branch, const ForwardContext& context,
                            std::string_view what) {
  const bool is_alone = !has_hooks() && reduction_ == nullptr && context.layouts == nullptr;
  if (is_alone) return add_norm(x, branch, weight_, bias_, epsilon_);
  at::Tensor sum = branch.defined() ? add(x, branch, context, what) : x;
  at::Tensor normed = (*this)(sum, context);
  return {std::move(sum), std::move(normed)};
}

}  // namespace caravan

#include "caravan/nn/linear.h"

#include <cmath>

#include "caravan/nn/ops.h"
#include "caravan/nn/product.h"

namespace caravan {

Linear::Linear(const Options& options)
    : weight_(register_parameter(
          "weight",
          {.shape = {options.out, options.in}, .init = {Init::Kind::normal, options.init_std}, .decays = true})) {
  if (options.bias) bias_ = &register_parameter("bias", {.shape = {options.out}, .init = {}, .decays = false});
}

double residual_init_std(const ModelConfig& config) {
  return kInitStd / std::sqrt(2 * static_cast<double>(config.layers));
}

at::Tensor Linear::forward(const at::Tensor& input, const ForwardContext& context) {
  static const OpType kProduct{"bsk,nk->bsn", "", {{0}, {1}}};
  static const OpType kSum{"bsn,n->bsn", "", {{0, 1}}};
  at::Tensor y = linear(input, weight_, bias_);
  record_layout(context, kProduct, y, {input, weight_}, name());
  if (bias_ != nullptr) record_layout(context, kSum, y, {y, *bias_}, name());
  return y;
}

}  // namespace caravan

#include "caravan/nn/linear.h"

#include <cmath>

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

at::Tensor Linear::forward(const at::Tensor& input, const ForwardContext& /*context*/) {
  return linear_product(input, weight_.compute(), bias_ == nullptr ? at::Tensor() : bias_->compute());
}

}  // namespace caravan

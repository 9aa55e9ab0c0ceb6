#include "caravan/nn/head.h"

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/nn/cross_entropy.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/norm.h"
#include "caravan/nn/product.h"

namespace caravan {

Head::Head(const ModelConfig& config, Parameter* tied)
    : norm_(config.kind == ModelKind::gpt2
                ? static_cast<Layer&>(register_module<LayerNorm>("norm", config.width, config.norm_epsilon))
                : register_module<RmsNorm>("norm", config.width, config.norm_epsilon)),
      weight_(tied != nullptr ? share_parameter(*tied)
                              : register_parameter("weight", {.shape = {config.vocabulary, config.width},
                                                              .init = {Init::Kind::normal, kInitStd},
                                                              .decays = true})) {}

Tensors Head::forward(Tensors inputs, const ForwardContext& context) {
  if (inputs.empty() || inputs.size() > 2) {
    throw InternalError(
        {"head", name(), fmt::format("takes a stream and perhaps labels, got {}", inputs.size()), "", ""});
  }
  const at::Tensor x = norm_(inputs[0], context);
  if (inputs.size() == 1) return {linear_product(x, weight_.compute())};
  return {fused_cross_entropy(x, weight_.compute(), inputs[1], context.loss_scale)};
}

}  // namespace caravan

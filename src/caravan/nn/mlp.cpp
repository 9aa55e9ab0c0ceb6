#include "caravan/nn/mlp.h"

#include <array>

#include "caravan/nn/init_std.h"
#include "caravan/nn/ops.h"

namespace caravan {

Mlp::Mlp(const ModelConfig& config, int64_t hidden)
    : activation_(config.arch.activation),
      gate_(config.arch.is_gated
                ? &register_module<Linear>("gate", Linear::Options{.in = config.width,
                                                                   .out = hidden,
                                                                   .bias = config.arch.mlp_bias,
                                                                   .init_std = input_init_std(config, config.width)})
                : nullptr),
      up_(register_module<Linear>("up", Linear::Options{.in = config.width,
                                                        .out = hidden,
                                                        .bias = config.arch.mlp_bias,
                                                        .init_std = input_init_std(config, config.width)})),
      down_(register_module<Linear>("down", Linear::Options{.in = hidden,
                                                            .out = config.width,
                                                            .bias = config.arch.mlp_bias,
                                                            .init_std = output_init_std(config, hidden)})),
      dropout_(register_module<Dropout>("dropout", branch_dropout(config))) {}

at::Tensor Mlp::forward(const at::Tensor& input, const ForwardContext& context) {
  if (gate_ == nullptr)
    return dropout_(down_(activated(activation_, up_(input, context), context, name()), context), context);
  const Tensors both = Linear::outputs_of(std::array{gate_, &up_}, input, context);
  return dropout_(down_(gated(activation_, both[0], both[1], context, name()), context), context);
}

}  // namespace caravan

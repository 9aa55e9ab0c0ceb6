#include "caravan/nn/mlp.h"

#include "caravan/nn/ops.h"

namespace caravan {

Mlp::Mlp(const ModelConfig& config)
    : up_(register_module<Linear>("up", Linear::Options{.in = config.width, .out = config.hidden_width()})),
      down_(register_module<Linear>(
          "down",
          Linear::Options{.in = config.hidden_width(), .out = config.width, .init_std = residual_init_std(config)})),
      dropout_(register_module<Dropout>("dropout", config.dropout)) {}

at::Tensor Mlp::forward(const at::Tensor& input, const ForwardContext& context) {
  return dropout_(down_(tanh_gelu(up_(input, context), context, name()), context), context);
}

GatedMlp::GatedMlp(const ModelConfig& config)
    : gate_(register_module<Linear>("gate",
                                    Linear::Options{.in = config.width, .out = config.hidden_width(), .bias = false})),
      up_(register_module<Linear>("up",
                                  Linear::Options{.in = config.width, .out = config.hidden_width(), .bias = false})),
      down_(register_module<Linear>("down", Linear::Options{.in = config.hidden_width(),
                                                            .out = config.width,
                                                            .bias = false,
                                                            .init_std = residual_init_std(config)})) {}

at::Tensor GatedMlp::forward(const at::Tensor& input, const ForwardContext& context) {
  const at::Tensor gate = gate_(input, context);
  return down_(swiglu(gate, up_(input, context), context, name()), context);
}

}  // namespace caravan

#pragma once

#include "caravan/module/module.h"
#include "caravan/nn/config.h"
#include "caravan/nn/dropout.h"
#include "caravan/nn/linear.h"

namespace caravan {

/// down(activation(up(x))), or gated down(activation(gate(x)) * up(x)), as config.arch says. Dropout follows with
/// arch.drops_branches.
class Mlp final : public Layer {
 public:
  /// `hidden` features.
  Mlp(const ModelConfig& config, int64_t hidden);
  explicit Mlp(const ModelConfig& config) : Mlp(config, config.hidden_width()) {}

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  Activation activation_;
  Linear* gate_;  ///< null: not gated
  Linear& up_;
  Linear& down_;
  Dropout& dropout_;
};

}  // namespace caravan

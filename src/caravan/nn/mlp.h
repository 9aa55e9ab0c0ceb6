#pragma once

#include "caravan/module/module.h"
#include "caravan/nn/config.h"
#include "caravan/nn/dropout.h"
#include "caravan/nn/linear.h"

namespace caravan {

/// GPT-2: down(gelu(up(x))), with biases and dropout.
class Mlp final : public Layer {
 public:
  explicit Mlp(const ModelConfig& config);

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  Linear& up_;
  Linear& down_;
  Dropout& dropout_;
};

/// Llama: down(silu(gate(x)) * up(x)), no biases.
class GatedMlp final : public Layer {
 public:
  explicit GatedMlp(const ModelConfig& config);

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  Linear& gate_;
  Linear& up_;
  Linear& down_;
};

}  // namespace caravan

#pragma once

#include "caravan/module/module.h"

namespace caravan {

/// x * w / sqrt(mean of x^2 over the last dim + epsilon). x: [.., width], of the weight's dtype. Statistics in fp32.
at::Tensor rms_normalised(const at::Tensor& x, const at::Tensor& weight, double epsilon);

/// (x - mean) / sqrt(variance + epsilon) * weight + bias over the last dim.
class LayerNorm final : public Layer {
 public:
  LayerNorm(int64_t width, double epsilon);

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  double epsilon_;
  Parameter& weight_;
  Parameter& bias_;
};

class RmsNorm final : public Layer {
 public:
  RmsNorm(int64_t width, double epsilon);

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  double epsilon_;
  Parameter& weight_;
};

}  // namespace caravan

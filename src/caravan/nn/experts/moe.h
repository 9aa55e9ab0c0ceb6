#pragma once

#include "caravan/nn/dropout.h"
#include "caravan/nn/experts/experts.h"
#include "caravan/nn/experts/router.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/mlp.h"

namespace caravan {

/// A mixture of experts (MoeConfig) instead of an MLP: the experts that "router" chooses for each token, and "shared",
/// an MLP for all tokens, whose output "shared_gate" may scale.
class Moe final : public Layer {
 public:
  explicit Moe(const ModelConfig& config);

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  Router& router_;
  Experts& experts_;
  Mlp* shared_ = nullptr;
  Linear* shared_gate_ = nullptr;
  Dropout& dropout_;
};

}  // namespace caravan

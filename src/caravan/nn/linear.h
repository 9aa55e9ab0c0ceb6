#pragma once

#include "caravan/module/module.h"
#include "caravan/nn/config.h"

namespace caravan {

inline constexpr double kInitStd = 0.02;  ///< of every weight matrix and embedding, as in GPT-2

/// y = x W^T + b. Weight [out, in], as in torch; bias [out]. Column split: both S(0). Row split: weight S(1), and P for
/// the bias in compute (I -> P adds it once) and the output, which a hook then reduces.
class Linear final : public Layer {
 public:
  struct Options {
    int64_t in = 0;
    int64_t out = 0;
    bool bias = true;
    double init_std = kInitStd;
  };
  explicit Linear(const Options& options);

  Parameter& weight() noexcept { return weight_; }
  Parameter* bias() noexcept { return bias_; }

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  Parameter& weight_;
  Parameter* bias_ = nullptr;
};

/// Init of the two linear layers of a block that write into the residual stream, scaled down as in GPT-2 because
/// 2 x layers of them add up there.
double residual_init_std(const ModelConfig& config);

}  // namespace caravan

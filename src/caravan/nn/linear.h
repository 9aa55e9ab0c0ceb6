#pragma once

#include "caravan/module/module.h"
#include "caravan/nn/config.h"
#include "caravan/nn/tiles.h"

namespace caravan {

inline constexpr double kInitStd = 0.02;  ///< of every weight matrix and embedding, as in GPT-2

class LoraAdapter;

/// y = x W^T + b, plus what an adapter adds. Weight [out, in], as in torch; bias [out]. Column split: both S(0). Row
/// split: weight S(1), and P for the bias in compute (I -> P adds it once) and the output, which a hook then reduces.
class Linear final : public Layer, public Tileable {
 public:
  struct Options {
    int64_t in = 0;
    int64_t out = 0;
    bool bias = true;
    double init_std = kInitStd;
  };
  explicit Linear(const Options& options);

  /// Without memory if it is cut into tiles.
  Parameter& weight() noexcept { return weight_; }
  Parameter* bias() noexcept { return bias_; }

  /// Creates the child "lora", before the layer has memory.
  void add_adapter(int64_t rank, double scale);
  /// `y` plus the output of the adapter, if any, for the layer's input: with the layout of y.
  at::Tensor with_adapter(const at::Tensor& y, const at::Tensor& input, const ForwardContext& context);

  std::vector<Weight> weights_to_cut() override { return {{&weight_}}; }
  std::vector<Module*> cut(const std::vector<std::vector<TileCut>>& cuts, bool follows_trained) override;

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  Options options_;
  Parameter& weight_;
  Parameter* bias_ = nullptr;
  LoraAdapter* adapter_ = nullptr;
  Tiles tiles_{};
};

/// scale B A x, a low-rank addition to a linear layer (LoraConfig). Children "a" [rank, in] and "b" [out, rank].
class LoraAdapter final : public Layer {
 public:
  LoraAdapter(const Linear::Options& of, int64_t rank, double scale);

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  double scale_;
  Linear& a_;
  Linear& b_;
};

/// Init of the two linear layers of a block that write into the residual stream, scaled down as in GPT-2 because
/// 2 x layers of them add up there.
double residual_init_std(const ModelConfig& config);
/// Dropout probability of the embedding and of both branches.
inline double branch_dropout(const ModelConfig& config) { return config.arch.drops_branches ? config.dropout : 0; }

}  // namespace caravan

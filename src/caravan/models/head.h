#pragma once

#include "caravan/module/module.h"
#include "caravan/nn/config.h"
#include "caravan/nn/loss/cross_entropy.h"
#include "caravan/nn/norm.h"
#include "caravan/nn/tiles.h"

namespace caravan {

/// The projection of hidden states to the vocabulary: x [.., width] -> [.., vocabulary], capped (soft_capped). Shares
/// its weight.
class Logits final : public Layer {
 public:
  explicit Logits(Parameter& weight, double cap = 0) : weight_(share_parameter(weight)), cap_(cap) {}
  /// The weight is cut into these.
  void use_tiles(const Tiles& tiles);

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  Parameter& weight_;
  double cap_;
  const Tiles* tiles_ = nullptr;
};

/// The last block of a model: final norm and the projection to the vocabulary. {stream} -> {logits [.., vocabulary]},
/// from the child "logits"; {stream, labels} -> {loss}, a scalar, from the child "loss". Both share one weight.
class Head final : public Module, public Tileable {
 public:
  /// `tied`: the token embedding's weight, or null for a separate weight.
  Head(const ModelConfig& config, Parameter* tied);

  std::vector<Weight> weights_to_cut() override { return {{&weight_}}; }
  std::vector<Module*> cut(const std::vector<std::vector<TileCut>>& cuts, bool follows_trained) override;

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  Norm& norm_;
  Parameter& weight_;  ///< [vocabulary, width]
  Logits& logits_;
  CrossEntropy& loss_;
  Tiles tiles_{};
};

}  // namespace caravan

#pragma once

#include "caravan/module/module.h"
#include "caravan/nn/config.h"
#include "caravan/nn/dropout.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/loss/cross_entropy.h"
#include "caravan/nn/norm.h"
#include "caravan/nn/tiles.h"

namespace caravan {

/// The projection of hidden states to the vocabulary: x [.., width] -> [.., vocabulary], capped (soft_capped). Shares
/// its weight, and its bias, which may be null.
class Logits final : public Layer {
 public:
  Logits(Parameter& weight, Parameter* bias, double cap)
      : weight_(share_parameter(weight)), bias_(bias == nullptr ? nullptr : &share_parameter(*bias)), cap_(cap) {}
  /// The weight is cut into these.
  void use_tiles(const Tiles& tiles);

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  Parameter& weight_;
  Parameter* bias_;
  double cap_;
  const Tiles* tiles_ = nullptr;
};

/// The last block of a model: the projection to the vocabulary, or to classes, of what the model's kind makes of the
/// stream:
///
///   a language model   the last norm ("norm"), of models that have one
///   masked tokens      "transform", the activation, "norm"; the projection has a bias (BERT, arXiv 1810.04805)
///   classes            of a decoder: "norm"; else tanh of "transform", and a bias (BERT)
///
/// {stream} -> {logits [.., vocabulary]}, from the child "logits"; {stream, labels} -> {loss}, a scalar, from the child
/// "loss". Both share one weight. Of labels of rows with a source, those of the target count.
class Head final : public Module, public Tileable {
 public:
  /// `tied`: the token embedding's weight, or null for a separate weight.
  Head(const ModelConfig& config, Parameter* tied);

  /// Of the stream: its last norm, of a model that has one.
  at::Tensor states(const at::Tensor& stream, const ForwardContext& context);

  /// None if there is a bias.
  std::vector<Weight> weights_to_cut() override;
  std::vector<Module*> cut(const std::vector<std::vector<TileCut>>& cuts, bool follows_trained) override;

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  at::Tensor hidden(const at::Tensor& stream, const ForwardContext& context);

  bool has_encoder_;
  bool norms_stream_;
  bool pools_;
  Activation activation_;
  double scale_;
  Linear* transform_;  ///< null: none
  Norm* norm_;         ///< the same
  Dropout* dropout_;
  Parameter& weight_;  ///< [ModelConfig::num_outputs(), width]
  Parameter* bias_;    ///< of as many rows; null: none
  Logits& logits_;
  CrossEntropy& loss_;
  Tiles tiles_{};
};

}  // namespace caravan

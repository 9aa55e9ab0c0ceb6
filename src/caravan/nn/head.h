#pragma once

#include "caravan/module/module.h"
#include "caravan/nn/config.h"
#include "caravan/nn/cross_entropy.h"

namespace caravan {

/// The last block of a model: final norm and the projection to the vocabulary. {stream} -> {logits [.., vocabulary]};
/// {stream, labels} -> {loss}, a scalar: that of the child "loss", which has the same weight.
class Head final : public Module {
 public:
  /// `tied`: the token embedding's weight, or null for a weight of its own.
  Head(const ModelConfig& config, Parameter* tied);

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  Layer& norm_;
  Parameter& weight_;  ///< [vocabulary, width]
  CrossEntropy& loss_;
};

}  // namespace caravan

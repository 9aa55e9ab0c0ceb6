#pragma once

#include <memory>
#include <utility>

#include "caravan/module/module.h"
#include "caravan/nn/attention/attention.h"
#include "caravan/nn/config.h"
#include "caravan/nn/residual_stream.h"

namespace caravan {

/// One layer of a decoder: x += attention(norm(x)); x += mlp(norm(x)). {stream, ..} -> {stream, ..}: the other inputs
/// (labels) pass through, so that blocks can be chained.
template <class Norm, class Feed>
class PreNormBlock final : public Module {
 public:
  PreNormBlock(const ModelConfig& config, std::shared_ptr<RopeTable> rope)
      : attention_norm_(register_module<Norm>("attention_norm", config.width, config.norm_epsilon)),
        attention_(register_module<Attention>("attention", config, std::move(rope))),
        mlp_norm_(register_module<Norm>("mlp_norm", config.width, config.norm_epsilon)),
        mlp_(register_module<Feed>("mlp", config)) {}

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override {
    ResidualStream x(std::move(inputs.front()), context, name());
    x += attention_(x.normed(attention_norm_), context);
    x += mlp_(x.normed(mlp_norm_), context);
    inputs.front() = x.value();
    return inputs;
  }

 private:
  Norm& attention_norm_;
  Attention& attention_;
  Norm& mlp_norm_;
  Feed& mlp_;
};

}  // namespace caravan

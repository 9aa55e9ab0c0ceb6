#pragma once

#include <memory>

#include "caravan/module/module.h"
#include "caravan/nn/attention/attention.h"
#include "caravan/nn/config.h"
#include "caravan/nn/residual_stream.h"

namespace caravan {

/// One layer of a decoder, as config.arch says: x += attention(norm(x)); x += mlp(norm(x)), with norms before or after
/// the branches or both, one after the other or in parallel. {stream, ..} -> {stream, ..}: the other inputs (labels)
/// pass through, so that blocks can be chained.
///
/// Modules: "attention_norm", "attention", "attention_post_norm", "mlp_norm", "mlp", "mlp_post_norm", as far as the
/// architecture has them.
class Block final : public Module {
 public:
  Block(const ModelConfig& config, int64_t layer, std::shared_ptr<RopeTable> rope);

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  Norm* add_norm(const char* name, const ModelConfig& config, bool is_there);
  Layer& add_feed(const ModelConfig& config, int64_t layer);
  at::Tensor attend(const at::Tensor& x, const ForwardContext& context);
  at::Tensor feed(const at::Tensor& x, const ForwardContext& context);

  bool is_parallel_;
  Norm* attention_norm_;  ///< these may be null
  Attention& attention_;
  Norm* attention_post_norm_;
  Norm* mlp_norm_;
  Layer& mlp_;
  Norm* mlp_post_norm_;
};

}  // namespace caravan

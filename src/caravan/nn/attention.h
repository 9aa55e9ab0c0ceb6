#pragma once

#include <memory>

#include "caravan/module/module.h"
#include "caravan/nn/config.h"
#include "caravan/nn/dropout.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/rope.h"

namespace caravan {

/// softmax(q k^T / sqrt(width), causal) v: {q, k, v}, each [batch, positions, heads, width] -> {[batch, positions,
/// heads, width]}. A separate module, so that hooks around it can exchange sequence for heads, or gather keys.
///
/// Keys and values start at position 0. With as many queries as keys, both are the whole sequence. With fewer, the
/// queries are the last positions of a cache, or else the piece at the context's sequence offset. The number of query
/// heads is a multiple of the number of kv heads. Throws ShapeError if the keys are only a piece of the sequence.
class AttentionCore final : public Module {
 public:
  explicit AttentionCore(double dropout) : dropout_(dropout) {}

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  at::Tensor with_dropout(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t first,
                          const ForwardContext& context) const;
  double dropout_;
};

/// Causal self-attention. Query, key and value have separate weights, which may be split on dim 0 by whole heads; the
/// number of local heads follows from their outputs. Llama rotates queries and keys by their positions.
class Attention final : public Layer {
 public:
  /// `rope`: the model's table, null for none.
  Attention(const ModelConfig& config, std::shared_ptr<RopeTable> rope);

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  at::Tensor heads(Linear& projection, const at::Tensor& input, const ForwardContext& context) const;

  int64_t head_width_;
  std::shared_ptr<RopeTable> rope_;
  Linear& query_;
  Linear& key_;
  Linear& value_;
  AttentionCore& core_;
  Linear& output_;
  Dropout& dropout_;
};

}  // namespace caravan

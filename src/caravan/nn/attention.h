#pragma once

#include <memory>

#include "caravan/module/module.h"
#include "caravan/nn/config.h"
#include "caravan/nn/dropout.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/rope.h"

namespace caravan {

/// softmax(q k^T / sqrt(width), causal) v: {q, k, v}, each [batch, positions, heads, width] -> {[batch, positions,
/// heads, width]}. A module of its own, so that hooks can exchange sequence for heads, or gather keys, around it.
///
/// Keys and values begin at position 0. As many queries as keys: both are the whole sequence. Fewer: the queries are
/// the last ones of a cache, else the piece at the context's sequence offset. kv heads divide the query heads.
/// Throws ShapeError if the keys are only a piece of the sequence.
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

/// Causal self-attention: query, key and value are weights of their own, split by whole heads on dim 0; how many heads
/// are here is read off their outputs. Llama turns queries and keys by their positions.
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

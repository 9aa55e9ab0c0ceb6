#pragma once

#include <memory>

#include "caravan/module/module.h"
#include "caravan/nn/attention/attention_dropout.h"
#include "caravan/nn/attention/rope.h"
#include "caravan/nn/config.h"
#include "caravan/nn/dropout.h"
#include "caravan/nn/linear.h"

namespace caravan {

/// softmax(q k^T / sqrt(width), causal) v: {q, k, v}, each [batch, positions, heads, width] -> {[batch, positions,
/// heads, width]}. The number of query heads is a multiple of the number of kv heads. A separate module, so that hooks
/// around it can exchange sequence for heads, gather keys, or cache earlier ones.
///
///   {q, k, v}         all positions of the sequence, in order
///   {q, k, v, order}  other queries than keys: order[i], int64, is the index of query i's own key among the keys; it
///                     sees the keys up to that one. Keys are those of the whole sequence, in order
///
/// With context.documents, those of the keys, a query sees only keys of its own document. Throws ShapeError naming the
/// module if the keys are only a piece of the sequence.
class AttentionCore final : public Module {
 public:
  explicit AttentionCore(double dropout) : dropout_(dropout) {}

  /// Whether a pass drops attention weights.
  bool drops(const ForwardContext& context) const noexcept { return context.is_training() && dropout_ > 0; }

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  at::Tensor attend(const Tensors& inputs, const ForwardContext& context) const;
  /// What a pass drops of the weights of these queries; null: nothing.
  c10::intrusive_ptr<AttentionDropout> dropout_of(const at::Tensor& q, const ForwardContext& context) const;
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

#pragma once

#include <memory>

#include "caravan/module/module.h"
#include "caravan/nn/attention/attention_dropout.h"
#include "caravan/nn/attention/distance_buckets.h"
#include "caravan/nn/attention/rope.h"
#include "caravan/nn/attention/scores.h"
#include "caravan/nn/config.h"
#include "caravan/nn/dropout.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/norm.h"

namespace caravan {

/// softmax(scores of q and k) v, causal or not, or within a window: {q, k, v}, each [batch, positions, heads, width] ->
/// {[batch, positions, heads, width]}. The number of query heads is a multiple of the number of kv heads. A separate
/// module, so that hooks around it can exchange sequence for heads, gather keys, or cache earlier ones.
///
///   {q, k, v}         all positions of the sequence, in order
///   {q, k, v, order}  other queries than keys: order[i], int64, is the index of query i's own key among the keys; it
///                     sees the keys up to that one. Keys are those of the whole sequence, in order
///
/// Of a cross attention, q is of the target and k, v of the source, in order and whole; a query sees all keys.
///
/// With context.documents, those of the keys, a query sees only keys of its own document; of a cross attention, they
/// are those of the queries, and the keys have context.source_documents. Throws ShapeError naming the module if the
/// keys are only a piece of the sequence.
class AttentionCore final : public Module {
 public:
  struct Options {
    bool is_causal = true;
    bool is_cross = false;  ///< keys are of another text; not causal, and without a bias of distances
    double dropout = 0;
    double scale = 0;         ///< of scores; 0: 1 / sqrt(width)
    double soft_cap = 0;      ///< of scores; 0: none
    int64_t window = 0;       ///< keys that a query sees, its own included; 0: all up to its own
    int64_t alibi_heads = 0;  ///< heads of the model, each with a slope (arXiv 2108.12409); 0: scores have no slopes
  };
  /// `buckets`: 0 for none, else their number: the core has biases of the distances ("bias"), of `heads` in all.
  /// `shared`: the same of another layer, in place of its own.
  struct Buckets {
    int64_t count = 0;
    int64_t most = 128;
    int64_t heads = 0;
    Parameter* shared = nullptr;
  };
  explicit AttentionCore(const Options& options) : AttentionCore(options, Buckets{}) {}
  AttentionCore(const Options& options, const Buckets& buckets);

  const Options& options() const noexcept { return options_; }
  /// The biases by buckets of distances; null: none.
  Parameter* buckets() const noexcept { return buckets_.weight(); }
  /// Whether a pass drops attention weights.
  bool drops(const ForwardContext& context) const noexcept { return context.is_training() && options_.dropout > 0; }
  /// Those of `heads` heads, which context.index places among all, for distances below `keys`.
  Scores scores(int64_t heads, int64_t keys, const ForwardContext& context, const at::TensorOptions& like) const;

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  at::Tensor attend(const Tensors& inputs, const ForwardContext& context) const;
  /// What a pass drops of the weights of these queries; null: nothing.
  c10::intrusive_ptr<AttentionDropout> dropout_of(const at::Tensor& q, const ForwardContext& context) const;
  at::Tensor attend_to_source(const Tensors& inputs, const ForwardContext& context) const;
  VisibleKeys visible_keys(const Tensors& inputs, int64_t keys) const;
  at::Tensor biases_of(int64_t heads, int64_t keys, const ForwardContext& context) const;

  Options options_;
  DistanceBuckets buckets_;
};

/// Self-attention, {x} -> {y}, or cross attention, {x of the target, states of the encoder} -> {y}. Query, key and
/// value have separate weights, which may be split on dim 0 by whole heads; the number of local heads follows from
/// their outputs. Queries and keys may pass through norms (QkNorm), and are rotated by their positions where the layer
/// has a table of angles.
class Attention final : public Module {
 public:
  /// What layers of a model share.
  struct Shared {
    std::shared_ptr<RopeTable> rope{};  ///< null if the layer does not rotate
    Parameter* buckets = nullptr;       ///< AttentionCore::Buckets::shared
  };
  enum class Role : uint8_t { self, cross };
  Attention(const ModelConfig& config, int64_t layer, const Shared& shared, Role role = Role::self);

  Parameter* buckets() const noexcept { return core_.buckets(); }

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  Norm* register_norm(const char* name, const ModelConfig& config, int64_t width);
  /// Queries, keys and values, of the states of the encoder where there are any.
  Tensors projections(const Tensors& inputs, const ForwardContext& context);
  /// [batch, sequence, head, width] of a projection x.
  at::Tensor heads_of(const Linear& projection, Norm* norm, at::Tensor x, const ForwardContext& context);

  int64_t head_width_;
  QkNorm qk_norm_;
  std::shared_ptr<RopeTable> rope_;
  Linear& query_;
  Linear& key_;
  Linear& value_;
  Norm* query_norm_;  ///< null: none
  Norm* key_norm_;
  AttentionCore& core_;
  Linear& output_;
  Dropout& dropout_;
};

}  // namespace caravan

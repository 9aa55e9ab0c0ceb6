#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/nn/architecture.h"
#include "caravan/nn/layer_set.h"

namespace caravan {

/// How a router turns its scores into gates.
enum class Gates : uint8_t { softmax, sigmoid };
/// The scope over which the balance of experts is counted.
enum class BalanceScope : uint8_t { sequence, batch };

/// A mixture of experts instead of each layer's MLP: every token goes through the top_k experts with the highest router
/// scores, and their outputs are summed, weighted by its gates. (Shazeer et al., arXiv 1701.06538.)
struct MoeConfig {
  int64_t experts = 0;  ///< of a layer, each an MLP of ModelConfig::hidden_width(); 0: none, a layer has one MLP
  int64_t top_k = 2;
  Gates gates = Gates::softmax;
  bool normalize = true;      ///< the gates of a token are divided by their sum
  int64_t shared_hidden = 0;  ///< width of an expert that every token goes through in addition; 0: none
  bool shared_gate = false;   ///< its output is multiplied by a separate gate, sigmoid(w x)
  /// An expert takes at most capacity x top_k x tokens / experts copies of the tokens of a sequence, first choices
  /// first, then in sequence order; it drops the others. 0: all.
  double capacity = 0;
  /// Scope of the balance loss, E sum over experts of (share of the copies) x (mean probability), whose gradient is
  /// added times balance_loss (Fedus et al., arXiv 2101.03961): the mean over sequences, or over the step's whole
  /// batch.
  BalanceScope balance = BalanceScope::sequence;
  double balance_loss = 0.01;
  double z_loss = 0;         ///< of the mean square of the scores' log-sum-exp (Zoph et al., arXiv 2202.08906)
  LayerSet dense_layers{};   ///< layers with one MLP instead, of dense_hidden
  int64_t dense_hidden = 0;  ///< 0: the default of the architecture

  bool is_used() const noexcept { return experts > 0; }
  /// Whether the whole step is routed once before its gradients are computed.
  bool balances_batch() const noexcept { return is_used() && balance == BalanceScope::batch && balance_loss > 0; }
  bool has_shared() const noexcept { return shared_hidden > 0; }
  bool operator==(const MoeConfig&) const = default;
};

/// Low-rank adapters (Hu et al., arXiv 2106.09685): all weights but a head of classes and `saved` are frozen, and each
/// chosen linear layer computes W x + scale B A x, in which A [rank, in] and B [out, rank] are trained. B starts at
/// zero.
struct LoraConfig {
  int64_t rank = 0;  ///< 0: no adapters, all weights are trained
  double alpha = 16;
  /// Linear layers by name or pattern; the names of their parents may be omitted: "query", "mlp.*", "blocks.3.*".
  std::vector<std::string> targets = default_targets();
  double dropout = 0;   ///< of the input of adapters, in training
  bool rslora = false;  ///< the scale is alpha / sqrt(rank) (Kalajdzievski, arXiv 2312.03732)
  /// Each output has a trained magnitude m: W x + scale B A x is multiplied by m / |its row of W + scale B A|, a norm
  /// that counts as a constant. m starts as that norm. (Liu et al., arXiv 2402.09353.)
  bool dora = false;
  std::vector<std::string> saved{};  ///< modules that are trained whole: "embedding", "head"
  bool experts = true;  ///< targets mean the tables of experts too; in models of earlier versions they do not

  static std::vector<std::string> default_targets() { return {"query", "value"}; }
  bool is_used() const noexcept { return rank > 0; }
  double scale() const noexcept;
  bool saves(std::string_view module) const noexcept;
  bool operator==(const LoraConfig&) const noexcept = default;
};

/// A model: its architecture, sizes and numbers; enough to build it, count its parameters and name its tensors. 0 in
/// kv_heads, hidden and own_head_width means the default; num_kv_heads(), hidden_width() and head_width() return the
/// resolved values.
struct ModelConfig {
  Architecture arch{};
  int64_t layers = 4;
  int64_t width = 192;
  int64_t heads = 6;
  int64_t kv_heads = 0;    ///< for grouped-query attention; 0: as many as heads
  int64_t context = 128;   ///< longest sequence; also the number of positions that are learned
  int64_t vocabulary = 0;  ///< set once the tokenizer is known
  int64_t hidden = 0;      ///< MLP width; 0: 4 width, gated 8/3 width rounded up to a multiple of 64
  bool tie_embeddings = true;
  double dropout = 0;  ///< of attention weights; with arch.drops_branches also of the embedding and both branches
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;  ///< base of the rotary frequencies
  MoeConfig moe{};
  LoraConfig lora{};
  int64_t own_head_width = 0;   ///< features of a head; 0: width / heads
  double rope_fraction = 1;     ///< the part of a head's features that is rotated
  RopeScaling rope_scaling{};   ///< of rope_theta's frequencies
  double local_rope_theta = 0;  ///< base of layers with a window, unscaled; 0: rope_theta, scaled
  LayerSet unrotated_layers{};  ///< layers without positions
  int64_t window = 0;           ///< keys that a query sees, its own included; 0: all up to its own
  LayerSet full_layers{};       ///< layers without the window
  double score_width = 0;       ///< scores are divided by its square root; 0: head_width()
  double attention_cap = 0;     ///< scores s become cap tanh(s / cap); 0: no cap
  double logits_cap = 0;        ///< the same for logits
  /// The first of the layers, which read a source text as a whole; the others also attend to what these return (Vaswani
  /// et al., arXiv 1706.03762). 0: no encoder.
  int64_t encoder_layers = 0;
  int64_t source_context = 0;  ///< longest source, which stands in front of each row; `context` is that of the target
  int64_t token_types = 0;     ///< vectors of which one is added to each token; 0: none
  int64_t buckets = 32;        ///< of Positions::buckets
  int64_t bucket_distance = 128;  ///< larger distances are in the last bucket
  int64_t classes = 0;            ///< of texts, in place of the vocabulary's logits; 0: none

  int64_t num_kv_heads() const noexcept { return kv_heads == 0 ? heads : kv_heads; }
  int64_t head_width() const noexcept { return own_head_width == 0 ? width / heads : own_head_width; }
  int64_t query_width() const noexcept { return heads * head_width(); }  ///< of all heads
  int64_t kv_width() const noexcept { return num_kv_heads() * head_width(); }
  int64_t rotated_width() const noexcept;  ///< features of a head that are rotated
  int64_t hidden_width() const noexcept;   ///< width of the MLP, or of an expert
  int64_t dense_width() const noexcept;    ///< width of the MLP of a layer without experts
  bool has_experts(int64_t layer) const noexcept { return moe.is_used() && !moe.dense_layers.has(layer); }
  int64_t num_expert_layers() const noexcept;
  int64_t window_of(int64_t layer) const noexcept { return full_layers.has(layer) ? 0 : window; }
  bool has_encoder() const noexcept { return encoder_layers > 0; }
  bool is_of_encoder(int64_t layer) const noexcept { return layer < encoder_layers; }
  /// Whether a token of the layer sees earlier ones only.
  bool is_causal(int64_t layer) const noexcept { return arch.is_causal && !is_of_encoder(layer); }
  /// Whether it has logits of the token that comes next.
  bool continues_texts() const noexcept { return arch.is_causal && classes == 0; }
  /// Tokens of a row of a batch: a source and its target, or one text.
  int64_t row_length() const noexcept { return source_context + context; }
  /// Rows of the head's weight.
  int64_t num_outputs() const noexcept { return classes > 0 ? classes : vocabulary; }
  bool ties_head() const noexcept { return tie_embeddings && classes == 0; }
  /// Whether the head transforms its input by a linear layer: of classes, or masked tokens, of an encoder.
  bool has_transform() const noexcept { return classes > 0 ? !arch.is_causal : arch.head == HeadKind::masked; }
  /// Whether the head has a norm: of the stream, or of what it makes of masked tokens.
  bool has_head_norm() const noexcept { return arch.has_last_norm() || (has_transform() && classes == 0); }
  /// Whether a parameter is what a base model lacks: of the head, without the norm of the stream.
  bool is_of_head(std::string_view parameter) const noexcept {
    return parameter.starts_with("head.") && !(arch.has_last_norm() && parameter.starts_with("head.norm."));
  }
  bool rotates(int64_t layer) const noexcept { return arch.rotates() && !unrotated_layers.has(layer); }

  /// Throws UsageError on the first impossible value. Its subject is the key ("model.heads"), its action the nearest
  /// valid choice. Everything else here expects a valid config.
  void validate() const;

  /// Number of parameters, adapters included; tied weights count once.
  int64_t num_parameters() const noexcept;
  /// Model FLOPs of training on one token of a row whose text, or target, has `length` tokens, forward and backward (3
  /// x forward; 2 x where weights are frozen). Counts matrix products only, attention without its causal mask,
  /// the head even if it is tied, the experts that a token goes through, and no recomputation.
  double flops_per_token(int64_t length) const noexcept;
  /// Those of the forward of a layer, and of the head, for a whole row.
  double forward_flops_of_layer(int64_t layer, int64_t length) const noexcept;
  double forward_flops_of_head(int64_t length) const noexcept;

  bool operator==(const ModelConfig&) const = default;
};

/// The model with all defaults resolved and unused settings at their defaults: of two that compute the same, equal
/// ones.
ModelConfig resolved(ModelConfig config);

/// A model of so many layers: the first ones, of encoder and decoder in about their proportion.
ModelConfig first_layers(ModelConfig config, int64_t layers);

}  // namespace caravan

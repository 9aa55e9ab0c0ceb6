#pragma once

#include <cstdint>
#include <string_view>

namespace caravan {

enum class ModelKind : uint8_t { gpt2, llama };

std::string_view name(ModelKind kind) noexcept;
/// The kind of that name. Throws UsageError naming the nearest there is.
ModelKind model_kind(std::string_view name);

/// The sizes of a reference model; enough to make it, count it and name its tensors. A 0 in kv_heads or hidden means
/// the kind's own rule; num_kv_heads() and hidden_width() say what that gives.
struct ModelConfig {
  ModelKind kind = ModelKind::gpt2;
  int64_t layers = 4;
  int64_t width = 192;
  int64_t heads = 6;
  int64_t kv_heads = 0;    ///< of grouped-query attention (Llama); 0: as many as heads
  int64_t context = 128;   ///< longest sequence; GPT-2 learns this many positions
  int64_t vocabulary = 0;  ///< known once the tokenizer is
  int64_t hidden = 0;      ///< MLP width; 0: 4 width (GPT-2), 8/3 width rounded up to a multiple of 64 (Llama)
  bool tie_embeddings = true;
  double dropout = 0;  ///< GPT-2: embedding, attention weights, both residual branches; Llama: attention weights
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;  ///< Llama: base of the rotary frequencies

  int64_t num_kv_heads() const noexcept { return kv_heads == 0 ? heads : kv_heads; }
  int64_t head_width() const noexcept { return width / heads; }
  int64_t hidden_width() const noexcept;

  /// Throws UsageError on the first value that no model can have; its subject is the key ("model.heads"), its action
  /// the nearest valid choice. Everything else here expects a valid config.
  void validate() const;

  /// Elements of all weights, a tied one counted once.
  int64_t num_parameters() const noexcept;
  /// Model FLOPs of training on one token of a sequence of `length`, forward and backward (three times the forward):
  /// matrix products only, attention counted as a full square, the head once whether tied or not, nothing recomputed.
  double flops_per_token(int64_t length) const noexcept;

  bool operator==(const ModelConfig&) const noexcept = default;
};

}  // namespace caravan

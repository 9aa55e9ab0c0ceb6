#pragma once

#include <cstdint>
#include <string_view>

namespace caravan {

enum class ModelKind : uint8_t { gpt2, llama };

std::string_view name(ModelKind kind) noexcept;
/// The kind of that name. Throws UsageError with the nearest valid name.
ModelKind model_kind(std::string_view name);

/// The sizes of a reference model: enough to build it, count its parameters and name its tensors. 0 in kv_heads or
/// hidden means the default of the kind; num_kv_heads() and hidden_width() return the resolved values.
struct ModelConfig {
  ModelKind kind = ModelKind::gpt2;
  int64_t layers = 4;
  int64_t width = 192;
  int64_t heads = 6;
  int64_t kv_heads = 0;    ///< of grouped-query attention (Llama); 0: as many as heads
  int64_t context = 128;   ///< longest sequence; GPT-2 learns this many positions
  int64_t vocabulary = 0;  ///< set once the tokenizer is known
  int64_t hidden = 0;      ///< MLP width; 0: 4 width (GPT-2), 8/3 width rounded up to a multiple of 64 (Llama)
  bool tie_embeddings = true;
  double dropout = 0;  ///< GPT-2: embedding, attention weights, both residual branches; Llama: attention weights
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;  ///< Llama: base of the rotary frequencies

  int64_t num_kv_heads() const noexcept { return kv_heads == 0 ? heads : kv_heads; }
  int64_t head_width() const noexcept { return width / heads; }
  int64_t hidden_width() const noexcept;

  /// Throws UsageError on the first impossible value. Its subject is the key ("model.heads"), its action the nearest
  /// valid choice. Everything else here expects a valid config.
  void validate() const;

  /// Number of parameters; tied weights count once.
  int64_t num_parameters() const noexcept;
  /// Model FLOPs of training on one token of a sequence of `length`, forward and backward (3 x forward). Counts matrix
  /// products only, attention without its causal mask, the head also if it is tied, and no recomputation.
  double flops_per_token(int64_t length) const noexcept;

  bool operator==(const ModelConfig&) const noexcept = default;
};

}  // namespace caravan

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace caravan {

enum class NormKind : uint8_t { layer, rms };
/// Where the norms of a branch (attention or MLP) of a layer are.
enum class NormPlace : uint8_t {
  before,  ///< x + f(norm(x)): GPT-2, Llama
  after,   ///< x + norm(f(x)): OLMo 2
  both,    ///< x + norm(f(norm(x))): Gemma 2
  sum,     ///< norm(x + f(x)): BERT
};
/// How a token knows its position.
enum class Positions : uint8_t {
  none,
  learned,  ///< a vector for each position is added to the embedding
  rotary,   ///< queries and keys are rotated (Su et al., arXiv 2104.09864)
  alibi,    ///< scores fall with the distance, by a slope for each head (Press et al., arXiv 2108.12409)
  buckets,  ///< a learned bias of scores for each head and bucket of distances: T5 (Raffel et al., arXiv 1910.10683)
};
/// Norms of queries and keys.
enum class QkNorm : uint8_t {
  none,
  head,   ///< of each head, with the same weights for all heads: Qwen 3, Gemma 3
  whole,  ///< of all heads together: OLMo 2
};
enum class Activation : uint8_t { gelu_tanh, gelu, relu, silu };
/// What comes between the last layer and the logits of the vocabulary.
enum class HeadKind : uint8_t {
  language,  ///< the last norm, if norms come before branches
  masked,    ///< norm(activation(linear(x))), and a bias for each token: BERT
};

/// What the layers of a model compute, apart from sizes and numbers, which are in ModelConfig. The rows of
/// formats/huggingface/architectures name the combinations that there are models of; others can be trained, but not
/// exported.
struct Architecture {
  std::string name = "gpt2";  ///< the row that it started from
  NormKind norm = NormKind::layer;
  NormPlace norm_place = NormPlace::before;
  bool is_parallel = false;   ///< attention and MLP of a layer read the same x, and both are added to it: GPT-NeoX
  bool has_one_norm = false;  ///< of a parallel layer: both branches read the same norm: Falcon
  Positions positions = Positions::learned;
  bool embedding_norm = false;    ///< a norm of the embedding: BLOOM
  bool scales_embedding = false;  ///< the embedding is multiplied by sqrt(width): Gemma
  bool drops_branches = true;     ///< dropout of the embedding and of both branches, not only of attention weights
  bool qkv_bias = true;
  bool output_bias = true;  ///< of attention
  QkNorm qk_norm = QkNorm::none;
  bool is_gated = false;  ///< MLP: down(activation(gate x) * up x), else down(activation(up x))
  Activation activation = Activation::gelu_tanh;
  bool mlp_bias = true;
  bool is_causal = true;  ///< a token sees earlier ones; false: all of its text: BERT. Layers of an encoder always do
  HeadKind head = HeadKind::language;
  bool scales_head = false;   ///< hidden states are divided by sqrt(width) before the head: T5
  bool drops_output = false;  ///< dropout of what the last layer returns, of an encoder too: T5

  static Architecture gpt2() { return {}; }
  static Architecture llama();

  bool rotates() const noexcept { return positions == Positions::rotary; }
  /// Whether norms have a bias.
  bool has_norm_bias() const noexcept { return norm == NormKind::layer; }
  bool has_norms_before() const noexcept { return norm_place == NormPlace::before || norm_place == NormPlace::both; }
  bool has_norms_after() const noexcept { return norm_place != NormPlace::before; }
  /// Whether the last layer's stream is not normed yet.
  bool has_last_norm() const noexcept { return norm_place != NormPlace::sum; }
  /// Whether they compute the same, whatever their names.
  bool operator==(const Architecture& other) const noexcept;
};

/// How rotary frequencies are changed for texts that are longer than those of the first training.
enum class RopeScalingKind : uint8_t {
  none,
  linear,    ///< divided by the factor
  dynamic,   ///< a larger base for sequences longer than the context
  llama3,    ///< low ones divided by the factor, high ones kept: Llama 3.1
  yarn,      ///< Peng et al., arXiv 2309.00071
  longrope,  ///< a factor for each frequency, other ones beyond the original context: Phi-3
};

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1;
  int64_t original_context = 0;  ///< before scaling; 0: ModelConfig::context. Not of linear
  double low_frequency = 1;      ///< llama3: periods above original_context / this are divided
  double high_frequency = 4;     ///< llama3: periods below original_context / this are kept
  double attention_factor = 0;   ///< of cosines and sines (yarn, longrope); 0: by the rule of the kind
  double beta_fast = 32;         ///< yarn
  double beta_slow = 1;          ///< yarn
  double mscale = 0;             ///< yarn: the rule of the attention factor; 0: not given
  double mscale_all = 0;
  bool truncate = true;                 ///< yarn: the range of interpolated dims has whole ends
  std::vector<double> short_factors{};  ///< longrope, one for each frequency
  std::vector<double> long_factors{};

  bool is_used() const noexcept { return kind != RopeScalingKind::none; }
  /// Whether longer sequences have other frequencies.
  bool depends_on_length() const noexcept {
    return kind == RopeScalingKind::dynamic || kind == RopeScalingKind::longrope;
  }
  bool operator==(const RopeScaling&) const = default;
};

}  // namespace caravan

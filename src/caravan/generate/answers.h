#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/generate/load.h"

namespace caravan {

// What a model says of a whole text, in one pass. Every rank of the model calls these with the same arguments, and gets
// the same answers. They throw UsageError for a model of another kind, and for a text (with its special tokens) of more
// tokens than the model's context, unless `truncate`: then its last tokens are left out, of a pair those of the longer
// text first (longest_first).

/// A text, or a pair of texts: "" for none.
struct TextInput {
  std::string text{};
  std::string pair{};
  bool truncate = false;
  std::string where{};  ///< where it is from, for errors: "texts.jsonl:3"
};

struct TokenScore {
  int64_t id = 0;
  std::string token{};  ///< the text that it stands for
  double probability = 0;
};
/// For each mask token of the text the `top` most probable tokens, most probable first. Throws UsageError for a model
/// without a head of masked tokens, a tokenizer without a mask token, and a text without one.
std::vector<std::vector<TokenScore>> fill_mask(const LanguageModel& model, const TextInput& input, int64_t top = 5);
/// The text with its mask tokens replaced by the most probable ones.
std::string filled(const LanguageModel& model, const TextInput& input,
                   const std::vector<std::vector<TokenScore>>& masks);

struct ClassScore {
  std::string name{};  ///< as the model's config.json has it, or "LABEL_0", ..
  double probability = 0;
};
/// All classes, most probable first. Throws UsageError for a model without classes.
std::vector<ClassScore> classify(const LanguageModel& model, const TextInput& input);

/// Of which token, or tokens, an embedding is.
enum class Pooling : uint8_t { mean, first, last };
/// The states of the last layer, normed as the model has it, pooled over the tokens of the text: [width]. Throws
/// UsageError for a model with an encoder and a decoder.
std::vector<float> embed(const LanguageModel& model, const TextInput& input, Pooling pooling = Pooling::mean);

}  // namespace caravan

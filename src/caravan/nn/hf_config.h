#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/nn/config.h"

namespace caravan {

/// Token ids that a config.json names.
struct SpecialTokens {
  std::optional<int64_t> begin{};  ///< bos_token_id
  std::vector<int64_t> end{};      ///< eos_token_id: generation stops at any of them
  std::optional<int64_t> pad{};    ///< pad_token_id
  bool operator==(const SpecialTokens&) const = default;
};

/// A config.json with which Hugging Face's transformers computes the same as Model. `dtype` of the weights beside it:
/// "float32" or "bfloat16".
std::string huggingface_config(const ModelConfig& config, const SpecialTokens& tokens = {},
                               std::string_view dtype = "float32");

/// The model that a config.json describes; a missing key has transformers' default. `file` is for messages.
/// Throws DataError naming the key: for text that is not JSON, a value of the wrong type or out of range, a model type
/// other than gpt2 and llama, and any setting that Model does not implement (another activation, scaled rotary angles,
/// biases in a Llama, different dropouts, quantized weights).
ModelConfig parse_huggingface_config(std::string_view json, std::string_view file);

/// The special tokens of a config.json that parse_huggingface_config accepts. Throws DataError for a value that is not
/// a token id; eos_token_id may also be a list of ids.
SpecialTokens parse_special_tokens(std::string_view json, std::string_view file);

}  // namespace caravan

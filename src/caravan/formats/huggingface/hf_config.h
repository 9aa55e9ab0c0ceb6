#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "caravan/nn/config.h"

namespace caravan {

/// Token ids and classes that a config.json names.
struct SpecialTokens {
  std::optional<int64_t> begin{};          ///< bos_token_id
  std::vector<int64_t> end{};              ///< eos_token_id: generation stops at any of them
  std::optional<int64_t> pad{};            ///< pad_token_id
  std::optional<int64_t> decoder_start{};  ///< decoder_start_token_id: the first token that a decoder is given
  /// prompt_end_token_id, a key of Caravan's own: ends a prompt, or source, whether the tokenizer adds it or not.
  std::optional<int64_t> prompt_end{};
  std::vector<std::string> classes{};  ///< id2label: their names; {}: none, or of a model without classes
  bool operator==(const SpecialTokens&) const = default;
};

/// A config.json with which Hugging Face's transformers computes the same logits as Model. `dtype` of the weights
/// beside it: "float32" or "bfloat16". moe.balance_loss becomes router_aux_loss_coef, although the losses differ: ours
/// is a mean over sequences, summed over layers; that of transformers counts all tokens and layers together, and is
/// top_k times as large. Throws UsageError for a model that transformers does not have (architecture_of).
std::string huggingface_config(const ModelConfig& config, const SpecialTokens& tokens = {},
                               std::string_view dtype = "float32");

/// The model that a config.json describes; a missing key has transformers' default. `file` is for messages.
/// Throws DataError naming the key: for text that is not JSON, a value of the wrong type or out of range, a model type
/// other than those of HuggingfaceForm, and any setting that Model does not implement (another activation, scaled
/// rotary angles, biases in a Llama, sliding windows, layers without experts among others, different dropouts,
/// quantized weights).
ModelConfig parse_huggingface_config(std::string_view json, std::string_view file);

/// Ends the class in `architectures` of a model of classes.
inline constexpr std::string_view kClassification = "ForSequenceClassification";
/// The settings of a model in a checkpoint (config_text.h).
inline constexpr const char* kSettings = "settings";
/// The key of SpecialTokens::prompt_end.
inline constexpr const char* kPromptEnd = "prompt_end_token_id";
/// "LABEL_0", ..: the name of a class without one.
std::string unnamed_class(int64_t number);
/// The names that the classes have in records: where a model has no names for them, their numbers.
std::vector<std::string> classes_of_records(const SpecialTokens& tokens);
/// Writes id2label, and what goes with it, of `count` classes.
void write_classes(const std::vector<std::string>& names, int64_t count, nlohmann::ordered_json& out);

/// The special tokens of a config.json that parse_huggingface_config accepts. Throws DataError for a value that is not
/// a token id; eos_token_id may also be a list of ids.
SpecialTokens parse_special_tokens(std::string_view json, std::string_view file);

}  // namespace caravan

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "caravan/nn/config.h"

namespace caravan {

/// Ids that a config.json names; generation starts and ends with them.
struct SpecialTokens {
  std::optional<int64_t> begin{};
  std::optional<int64_t> end{};
};

/// The config.json with which Hugging Face's transformers computes what Model computes. `dtype`: of the weights beside
/// it, "float32" or "bfloat16".
std::string huggingface_config(const ModelConfig& config, const SpecialTokens& tokens = {},
                               std::string_view dtype = "float32");

/// The model that a config.json describes; a key it leaves out has transformers' default. `file` is for messages.
/// Throws DataError naming the key: for text that is not JSON, a value of the wrong type or impossible, a kind of model
/// there is none of here, and whatever would make it compute something else (another activation, scaled rotary angles,
/// biases in a Llama, dropouts that differ, quantised weights).
ModelConfig parse_huggingface_config(std::string_view json, std::string_view file);

}  // namespace caravan

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/formats/huggingface/hf_config.h"

namespace caravan {

/// The contents of a Hugging Face generation_config.json; nothing for a key that is missing or null.
struct GenerationConfig {
  std::optional<int64_t> begin{};
  std::optional<std::vector<int64_t>> end{};
  std::optional<bool> do_sample{};
  std::optional<double> temperature{};
  std::optional<int64_t> top_k{};
  std::optional<double> top_p{};
  std::optional<double> min_p{};
  std::optional<double> typical_p{};
  std::optional<double> repetition_penalty{};
  std::optional<double> length_penalty{};  ///< of beams
  std::optional<int64_t> max_new_tokens{};
  std::vector<std::string> stop_strings{};
  /// Keys that would change the text and that Caravan does not implement, e.g. "num_beams = 4".
  std::vector<std::string> ignored{};
};

/// Throws DataError naming file and key for text that is not a JSON object and for a value of the wrong type.
GenerationConfig parse_generation_config(std::string_view json, std::string_view file);

/// The tokens that generation starts and stops with: those of `generation`, else those of the config.json.
SpecialTokens generation_tokens(const SpecialTokens& config, const GenerationConfig& generation);

}  // namespace caravan

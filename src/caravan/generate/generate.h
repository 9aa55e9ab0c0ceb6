#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "caravan/generate/generator.h"

namespace caravan {

/// Continues `prompt` once, by up to `num_tokens` tokens: see Generator. Returns the number of tokens generated.
int64_t generate(const TextModel& model, const Tokenizer& tokenizer, std::string_view prompt, int64_t num_tokens,
                 const SamplingOptions& options, const ShowText& show, const std::optional<SpecialTokens>& tokens = {});

}  // namespace caravan

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "caravan/data/tokenizer.h"
#include "caravan/generate/sampling.h"
#include "caravan/generate/text_model.h"
#include "caravan/nn/hf_config.h"

namespace caravan {

/// Continues `prompt` by up to `num_tokens` tokens, or until one of `tokens.end`, which is not shown. An empty prompt
/// begins with `tokens.begin`. Without `tokens` both are the tokenizer's end-of-text token. `show` receives the text as
/// it is generated, in well-formed UTF-8; it returns false to stop. Keys and values are cached; when the text outgrows
/// the model's context, its earlier half is dropped.
///
/// Every rank of the model calls it, with the same arguments; `show` is called on each. Returns the number of tokens
/// generated. Throws UsageError for options out of range and for an empty prompt without a begin token; DataError if
/// the tokenizer has more tokens than the model or the prompt is not UTF-8.
int64_t generate(const TextModel& model, const Tokenizer& tokenizer, std::string_view prompt, int64_t num_tokens,
                 const SamplingOptions& options, const std::function<bool(std::string_view text)>& show,
                 const std::optional<SpecialTokens>& tokens = {});

}  // namespace caravan

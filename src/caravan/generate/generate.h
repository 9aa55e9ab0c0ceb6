#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "caravan/data/tokenizer.h"
#include "caravan/generate/sampling.h"
#include "caravan/nn/model.h"

namespace caravan {

/// Continues `prompt` by up to `num_tokens` tokens, or until the tokenizer's end-of-text token, which is not shown.
/// `show` gets the text as it comes, in well-formed UTF-8; it returns false to end the generation. Keys and values are
/// cached; where the text outgrows the model's context, the earlier half of it is forgotten.
///
/// One rank calls it, with a materialised model. Returns the number of tokens made. Throws UsageError for an empty
/// prompt that no end-of-text token can stand in for, and for options outside their range; DataError if the tokenizer
/// has tokens the model does not know, or the prompt is not UTF-8.
int64_t generate(Model& model, const Tokenizer& tokenizer, std::string_view prompt, int64_t num_tokens,
                 const SamplingOptions& options, const std::function<bool(std::string_view text)>& show);

}  // namespace caravan

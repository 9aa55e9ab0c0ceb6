#pragma once

#include <string>
#include <string_view>

#include "caravan/generate/load.h"

namespace caravan {

/// The prompt for an answer: `text`, which a chat template has written with its prompt for a reply. The answer ends at
/// the model's end tokens, and at `turn_end` (ChatTemplate::turn_end): at its first token if that is a special one,
/// else before its text.
Prompt answer_prompt(std::string text, std::string_view turn_end, const Tokenizer& tokenizer,
                     ContinuationOptions options);

/// Throws DataError that names the model, which has no chat template.
[[noreturn]] void refuse_without_template(const LanguageModel& model);

}  // namespace caravan

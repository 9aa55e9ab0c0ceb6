#include "caravan/generate/generate.h"

namespace caravan {

int64_t generate(const TextModel& model, const Tokenizer& tokenizer, std::string_view prompt, int64_t num_tokens,
                 const SamplingOptions& options, const Generator::Show& show,
                 const std::optional<SpecialTokens>& tokens) {
  options.validate();
  return Generator(model, tokenizer, prompt, tokens)
      .run({.num_tokens = num_tokens, .sampling = options}, show)
      .num_tokens;
}

}  // namespace caravan

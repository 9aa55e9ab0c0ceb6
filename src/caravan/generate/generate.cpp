#include "caravan/generate/generate.h"

#include <string>

namespace caravan {

int64_t generate(const TextModel& model, const Tokenizer& tokenizer, std::string_view prompt, int64_t num_tokens,
                 const SamplingOptions& options, const ShowText& show, const std::optional<SpecialTokens>& tokens) {
  const Prompt one{std::string(prompt), {.num_tokens = num_tokens, .sampling = options}};
  return Generator(model, tokenizer, tokens)
      .run({&one, 1}, [&](size_t, std::string_view text) { return show(text); })
      .front()
      .num_tokens;
}

}  // namespace caravan

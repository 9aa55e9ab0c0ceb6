#include "caravan/generate/load.h"

#include <utility>

#include "caravan/base/error.h"

namespace caravan {

LanguageModel load(const std::filesystem::path& source, const Mesh& ranks, const LoadOptions& options) {
  return LanguageModel(FrozenModel::load(source, ranks, options));
}

std::vector<Continuation> LanguageModel::generate(std::span<const Prompt> prompts, const GeneratorOptions& options,
                                                  const ShowTexts& show, const OnEnd& on_end) {
  if (!has_head()) {
    throw UsageError({"generate", "model", origin() + " is a base model, without a head that continues texts", "",
                      "use embed, or train it with train.init_from"});
  }
  const SpecialTokens special = generation_tokens(text().tokens, settings_);
  for (const Prompt& prompt : prompts) {
    if (!prompt.options.truncate) check_prompt(prompt, tokenizer(), special, config());
  }
  return Generator(text_model(), tokenizer(), special, options).run(prompts, show, on_end);
}

Continuation LanguageModel::generate(std::string_view prompt, const ContinuationOptions& options,
                                     const ShowText& show) {
  const Prompt one{std::string(prompt), options};
  return generate({&one, 1}, {}, [&](size_t, std::string_view text) { return show(text); }).front();
}

std::string LanguageModel::generate(std::string_view prompt, const ContinuationOptions& options) {
  const Prompt one{std::string(prompt), options};
  return generate({&one, 1}, {}).front().text;
}

}  // namespace caravan

#include "caravan/train/evaluation/sample.h"

#include <vector>

#include "caravan/generate/generator.h"

namespace caravan {

std::optional<std::string> sample_text(RunState& state, const Recipe& recipe,
                                       const std::function<bool()>& stop_requested,
                                       const std::function<void(std::string_view)>& show) {
  std::string sampled = recipe.sample.prompt + (recipe.model.has_encoder() ? "\n" : "");
  show(sampled);
  const SamplingOptions sampling{.temperature = recipe.sample.temperature,
                                 .top_k = recipe.sample.top_k,
                                 .top_p = recipe.sample.top_p,
                                 .seed = static_cast<uint64_t>(recipe.train.seed)};
  const Prompt prompt{recipe.sample.prompt, {.num_tokens = recipe.sample.tokens, .sampling = sampling}};
  SpecialTokens tokens = state.tokens();
  if (!tokens.begin) tokens.begin = state.tokenizer().end_of_text();
  Generator generator(TextModel(state.engine()), state.tokenizer(), tokens);
  const std::vector<Continuation> made = generator.run({&prompt, 1}, [&](size_t, std::string_view text) {
    show(text);
    sampled += text;
    return !stop_requested || !stop_requested();
  });
  if (made.front().ending == Ending::not_shown) return std::nullopt;
  return sampled;
}

}  // namespace caravan

#include "caravan/generate/generate.h"

#include <algorithm>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/generate/kv_cache.h"

namespace caravan {
namespace {

SpecialTokens tokens_of(const Tokenizer& tokenizer) {
  const auto end = tokenizer.end_of_text();
  return end ? SpecialTokens{.begin = *end, .end = {*end}} : SpecialTokens{};
}

std::vector<int64_t> prompt_ids(const Tokenizer& tokenizer, std::string_view prompt, std::optional<int64_t> begin,
                                int64_t vocabulary) {
  std::vector<int64_t> ids;
  for (const int32_t id : tokenizer.encode(prompt, true)) ids.push_back(id);
  if (ids.empty() && begin) ids.push_back(*begin);
  if (ids.empty()) {
    throw UsageError({"generate", "prompt", "is empty, and the model has no token that begins a text", "",
                      "give some text to continue: --prompt TEXT"});
  }
  for (const int64_t id : ids) {
    if (id >= vocabulary) {
      throw DataError({"generate", "tokenizer", fmt::format("has token {}, the model only {}", id, vocabulary), "",
                       "use the tokenizer the model was trained with"});
    }
  }
  return ids;
}

}  // namespace

int64_t generate(const TextModel& model, const Tokenizer& tokenizer, std::string_view prompt, int64_t num_tokens,
                 const SamplingOptions& options, const std::function<bool(std::string_view text)>& show,
                 const std::optional<SpecialTokens>& tokens) {
  options.validate();
  const at::NoGradGuard no_grad;
  const SpecialTokens special = tokens.value_or(tokens_of(tokenizer));
  const ModelConfig& config = model.model.config();
  std::vector<int64_t> ids = prompt_ids(tokenizer, prompt, special.begin, config.vocabulary);
  const auto length = static_cast<size_t>(config.context);
  KvCache cache(model.model, config.context);
  ForwardContext context{.phase = Phase::generate};
  TextStream text(tokenizer, /*skip_special_tokens=*/true);
  size_t first = ids.size() > length ? ids.size() - length : 0;  // of the ids that the cache holds
  size_t seen = first;                                           // the model has seen those before
  bool stops = false;
  int64_t made = 0;
  for (; made < num_tokens; ++made) {
    if (ids.size() - first > length) {
      cache.clear();
      first = seen = ids.size() - (length - length / 2);
    }
    const std::vector<int64_t> fresh(ids.begin() + static_cast<std::ptrdiff_t>(seen), ids.end());
    const auto position = static_cast<int64_t>(seen - first);
    context.positions = at::arange(position, position + static_cast<int64_t>(fresh.size()), at::kLong);
    const at::Tensor logits = model.logits(at::tensor(fresh, at::kLong).unsqueeze(0), context);
    seen = ids.size();
    TextModel::Choice choice{.stops = stops};
    if (logits.defined()) {
      choice.token = sample_token(logits.select(0, 0).select(0, 0), options, static_cast<int64_t>(ids.size()));
    }
    choice = model.agree(choice);
    if (choice.stops) return made;
    if (std::ranges::find(special.end, choice.token) != special.end.end()) break;
    ids.push_back(choice.token);
    // A model's embedding may be padded past the tokenizer's last id.
    if (choice.token < tokenizer.vocab_size()) stops = !show(text.put(static_cast<int32_t>(choice.token)));
  }
  if (!stops) show(text.finish());
  return made;
}

}  // namespace caravan

#include "caravan/generate/generate.h"

#include <algorithm>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/nn/kv_cache.h"

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

int64_t generate(Model& model, const Tokenizer& tokenizer, std::string_view prompt, int64_t num_tokens,
                 const SamplingOptions& options, const std::function<bool(std::string_view text)>& show,
                 const std::optional<SpecialTokens>& tokens) {
  options.validate();
  const at::NoGradGuard no_grad;
  const SpecialTokens special = tokens.value_or(tokens_of(tokenizer));
  std::vector<int64_t> ids = prompt_ids(tokenizer, prompt, special.begin, model.config().vocabulary);
  const int64_t length = model.config().context;
  KvCache cache(length);
  ForwardContext context;
  context.training = false;
  context.cache = &cache;
  TextStream text(tokenizer, /*skip_special_tokens=*/true);
  size_t cached = 0;  // of ids: what the model has seen
  if (static_cast<int64_t>(ids.size()) > length) cached = ids.size() - static_cast<size_t>(length);
  int64_t made = 0;
  for (; made < num_tokens; ++made) {
    if (cache.length() + static_cast<int64_t>(ids.size() - cached) > length) {
      cache.clear();
      cached = ids.size() - static_cast<size_t>(length - length / 2);
    }
    const std::vector<int64_t> fresh(ids.begin() + static_cast<std::ptrdiff_t>(cached), ids.end());
    const at::Tensor logits = model.next_logits(at::tensor(fresh, at::kLong).unsqueeze(0), context);
    cached = ids.size();
    const int64_t id = sample_token(logits.select(0, 0), options, static_cast<int64_t>(ids.size()));
    if (std::ranges::find(special.end, id) != special.end.end()) break;
    ids.push_back(id);
    // A model's embedding may be padded past the tokenizer's last id.
    if (id < tokenizer.vocab_size() && !show(text.put(static_cast<int32_t>(id)))) return made + 1;
  }
  show(text.finish());
  return made;
}

}  // namespace caravan

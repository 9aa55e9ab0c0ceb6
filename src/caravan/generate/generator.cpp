#include "caravan/generate/generator.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/generate/stop_strings.h"

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

void check_prompt(std::string_view prompt, const Tokenizer& tokenizer, int64_t context) {
  const auto tokens = static_cast<int64_t>(tokenizer.encode(prompt, true).size());
  if (tokens <= context) return;
  throw UsageError({"generate", "prompt",
                    fmt::format("has {} tokens, but the context of the model is {}", tokens, context), "",
                    fmt::format("shorten it, or let the model see its last {} tokens: --truncate", context)});
}

Generator::Generator(TextModel model, Tokenizer tokenizer, std::string_view prompt,
                     const std::optional<SpecialTokens>& tokens)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      special_(tokens.value_or(tokens_of(tokenizer_))),
      prompt_(prompt_ids(tokenizer_, prompt, special_.begin, model_.model.config().vocabulary)),
      cache_(model_.model, model_.model.config().context) {}

Continuation Generator::run(const ContinuationOptions& options, const Show& show) {
  options.sampling.validate();
  StopStrings stop(options.stop_strings);
  TextStream text(tokenizer_, /*skip_special_tokens=*/true);
  const at::NoGradGuard no_grad;
  rewind();
  Continuation made;
  bool is_shown = true;
  for (; made.num_tokens < options.num_tokens; ++made.num_tokens) {
    const TextModel::Choice choice = choose(options.sampling, !is_shown);
    if (choice.stops) {
      made.ending = Ending::not_shown;
      return made;
    }
    if (std::ranges::find(special_.end, choice.token) != special_.end.end()) {
      made.ending = Ending::end_token;
      break;
    }
    ids_.push_back(choice.token);
    made.log_probabilities.push_back(choice.log_probability);
    // A model's embedding may be padded past the tokenizer's last id.
    if (choice.token < tokenizer_.vocab_size()) {
      is_shown = show(stop.put(text.put(static_cast<int32_t>(choice.token))));
    }
    if (stop.found()) {
      ++made.num_tokens;
      made.ending = Ending::stop_string;
      return made;
    }
  }
  if (is_shown) show(stop.put(text.finish()) + stop.finish());
  if (stop.found()) made.ending = Ending::stop_string;
  return made;
}

/// Returns to the end of the prompt, or to its beginning if the cache no longer holds all of it.
void Generator::rewind() {
  const auto length = static_cast<size_t>(cache_.context());
  const size_t begin = prompt_.size() > length ? prompt_.size() - length : 0;
  ids_ = prompt_;
  if (first_ == begin && seen_ >= prompt_.size()) {
    cache_.truncate(static_cast<int64_t>(prompt_.size() - begin));
    seen_ = prompt_.size();
  } else {
    cache_.clear();
    first_ = seen_ = begin;
  }
}

at::Tensor Generator::next_logits() {
  if (seen_ == ids_.size()) return prompt_logits_;
  const auto length = static_cast<size_t>(cache_.context());
  if (ids_.size() - first_ > length) {
    cache_.clear();
    first_ = seen_ = ids_.size() - (length - length / 2);
  }
  // Keys that were rotated by other frequencies do not fit those of a longer text.
  const RopeScaling& scaling = model_.model.config().rope_scaling;
  const auto original = static_cast<size_t>(scaling.original_context);
  const bool changes =
      scaling.kind == RopeScalingKind::longrope && seen_ - first_ <= original && ids_.size() - first_ > original;
  if (changes && seen_ > first_) {
    cache_.clear();
    seen_ = first_;
  }
  const std::vector<int64_t> fresh(ids_.begin() + static_cast<std::ptrdiff_t>(seen_), ids_.end());
  const auto position = static_cast<int64_t>(seen_ - first_);
  ForwardContext context{.phase = Phase::generate};
  context.positions = at::arange(position, position + static_cast<int64_t>(fresh.size()), at::kLong);
  const at::Tensor logits = model_.logits(at::tensor(fresh, at::kLong).unsqueeze(0), context);
  seen_ = ids_.size();
  if (seen_ == prompt_.size()) prompt_logits_ = logits;
  return logits;
}

/// The common choice of all ranks for the next token, and whether any of them stops.
TextModel::Choice Generator::choose(const SamplingOptions& sampling, bool stops) {
  const at::Tensor logits = next_logits();
  TextModel::Choice choice{.stops = stops};
  if (logits.defined()) {
    const at::Tensor row = logits.select(0, 0).select(0, 0);
    choice.token = sample_token(row, sampling, static_cast<int64_t>(ids_.size()), ids_, ids_.size() - prompt_.size());
    choice.log_probability = log_probability(row, choice.token);
  }
  return model_.agree(choice);
}

}  // namespace caravan

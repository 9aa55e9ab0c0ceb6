#include "caravan/generate/answers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/data/tasks/record_task.h"

namespace caravan {
namespace {

[[noreturn]] void refuse_input(const TextInput& input, const char* what, std::string fact, std::string action) {
  throw UsageError({"generate", what, std::move(fact), input.where, std::move(action)});
}

void check_head(const LanguageModel& model, const TextInput& input) {
  if (model.has_head()) return;
  refuse_input(input, "model", fmt::format("{} is a base model, without a head", model.origin()),
               "use embed, or train one with train.init_from");
}

/// With the special tokens; of a longer text the tokens that training keeps (ClassifyTask).
Encoding fitting(const LanguageModel& model, const TextInput& input) {
  const Tokenizer& tokenizer = model.tokenizer();
  const bool is_pair = !input.pair.empty();
  const std::vector<int32_t> text = tokenizer.encode(input.text), pair = tokenizer.encode(input.pair);
  const auto assembled = [&](int64_t of_text, int64_t of_pair) {
    const auto first = std::span(text).first(static_cast<size_t>(of_text));
    return is_pair ? tokenizer.with_special_tokens(first, std::span(pair).first(static_cast<size_t>(of_pair)))
                   : tokenizer.with_special_tokens(first);
  };
  Encoding all = assembled(std::ssize(text), std::ssize(pair));
  if (all.ids.empty()) refuse_input(input, "text", "has no tokens", "give some text");
  if (const int64_t most = model.config().context; std::ssize(all.ids) > most) {
    if (!input.truncate) {
      refuse_input(input, "text",
                   fmt::format("has {} tokens, but the context of the model is {}", all.ids.size(), most),
                   "shorten it, or let the model see its first tokens: --truncate");
    }
    const int64_t special = std::ssize(all.ids) - std::ssize(text) - std::ssize(pair);
    const auto [of_text, of_pair] = longest_first(std::ssize(text), std::ssize(pair), most - special);
    all = assembled(of_text, of_pair);
  }
  for (const int32_t id : all.ids) {
    if (id < model.config().vocabulary) continue;
    throw DataError({"generate", "tokenizer",
                     fmt::format("has token {}, the model only {}", id, model.config().vocabulary), "",
                     "use the tokenizer the model was trained with"});
  }
  return all;
}

/// [tokens, features] of the model's output for the text, fp32, on every rank.
at::Tensor output_of(const LanguageModel& model, const Encoding& text, TextModel::Part part) {
  const at::NoGradGuard no_grad;
  const auto row = [](const std::vector<int32_t>& ids) {
    return at::tensor(std::vector<int64_t>(ids.begin(), ids.end()), at::kLong).unsqueeze(0);
  };
  ForwardContext context{.phase = Phase::generate};
  const int64_t types = model.config().token_types;
  if (types > 0) context.token_types = row(text.type_ids).clamp_max(types - 1);
  return model.text_model().output(row(text.ids), context, part);
}

/// In descending order of the values.
std::vector<int64_t> ranking(const at::Tensor& values, int64_t top) {
  std::vector<int64_t> order(static_cast<size_t>(values.numel()));
  std::iota(order.begin(), order.end(), 0);
  const float* value = values.const_data_ptr<float>();
  const auto end = order.begin() + std::min<std::ptrdiff_t>(top, values.numel());
  std::partial_sort(order.begin(), end, order.end(),
                    [&](int64_t a, int64_t b) { return value[a] != value[b] ? value[a] > value[b] : a < b; });
  order.erase(end, order.end());
  return order;
}

}  // namespace

std::vector<std::vector<TokenScore>> fill_mask(const LanguageModel& model, const TextInput& input, int64_t top) {
  const ModelConfig& config = model.config();
  const Tokenizer& tokenizer = model.tokenizer();
  if (config.arch.head != HeadKind::masked || config.classes > 0) {
    refuse_input(input, "model", fmt::format("{} does not predict masked tokens", config.arch.name),
                 config.classes > 0 ? "use classify" : "use a model such as bert, or generate");
  }
  check_head(model, input);
  if (!tokenizer.mask_token()) {
    refuse_input(input, "tokenizer", "has no mask token", "use the tokenizer the model was trained with");
  }
  if (top < 1) refuse_input(input, "top", fmt::format("{} is too few", top), "use 1 or more");
  const int32_t mask = *tokenizer.mask_token();
  const Encoding text = fitting(model, input);
  if (std::ranges::find(text.ids, mask) == text.ids.end()) {
    refuse_input(input, "text", "has no masked token",
                 fmt::format("write {} for the words to fill in", tokenizer.token_bytes(mask)));
  }
  const at::Tensor logits = output_of(model, text, TextModel::Part::logits);
  std::vector<std::vector<TokenScore>> masks;
  for (size_t i = 0; i < text.ids.size(); ++i) {
    if (text.ids[i] != mask) continue;
    const at::Tensor chances = at::softmax(logits[static_cast<int64_t>(i)], 0);
    std::vector<TokenScore>& scores = masks.emplace_back();
    for (const int64_t id : ranking(chances, top)) {
      const std::string token =
          id < tokenizer.vocab_size() ? tokenizer.decode(std::vector{static_cast<int32_t>(id)}) : "";
      scores.push_back({id, token, chances[id].item<double>()});
    }
  }
  return masks;
}

std::string filled(const LanguageModel& model, const TextInput& input,
                   const std::vector<std::vector<TokenScore>>& masks) {
  Encoding text = fitting(model, input);
  size_t next = 0;
  for (int32_t& id : text.ids) {
    if (id == model.tokenizer().mask_token() && next < masks.size()) {
      id = static_cast<int32_t>(masks[next++].front().id);
    }
  }
  return model.tokenizer().decode(text.ids, /*skip_special_tokens=*/true);
}

std::vector<ClassScore> classify(const LanguageModel& model, const TextInput& input) {
  const ModelConfig& config = model.config();
  check_head(model, input);
  if (config.classes == 0) {
    refuse_input(input, "model", fmt::format("{} tells no classes of texts apart", config.arch.name),
                 "train one with data.task = \"classify\"");
  }
  const Encoding text = fitting(model, input);
  const at::Tensor logits = output_of(model, text, TextModel::Part::logits);
  const at::Tensor chances = at::softmax(logits[config.arch.is_causal ? logits.size(0) - 1 : 0], 0);
  const std::vector<std::string>& names = model.text().tokens.classes;
  std::vector<ClassScore> scores;
  for (const int64_t id : ranking(chances, config.classes)) {
    const auto at = static_cast<size_t>(id);
    scores.push_back({at < names.size() ? names[at] : unnamed_class(id), chances[id].item<double>()});
  }
  return scores;
}

std::vector<float> embed(const LanguageModel& model, const TextInput& input, Pooling pooling) {
  if (model.config().has_encoder()) {
    refuse_input(input, "model", fmt::format("{} has states of a source and of a target", model.config().arch.name),
                 "use a model of one text, such as bert");
  }
  const at::Tensor states = output_of(model, fitting(model, input), TextModel::Part::states);
  const at::Tensor pooled =
      pooling == Pooling::mean ? states.mean(0) : states[pooling == Pooling::first ? 0 : states.size(0) - 1];
  const at::Tensor values = pooled.contiguous();
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()};
}

}  // namespace caravan

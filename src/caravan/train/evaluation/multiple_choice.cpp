#include "caravan/train/evaluation/multiple_choice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/data/unicode/utf8.h"
#include "caravan/nn/loss/ignored_label.h"

namespace caravan {
namespace {

/// Python's str.isspace, which the harness strips by.
bool is_python_space(char32_t point) {
  return (point >= 0x9 && point <= 0xD) || (point >= 0x1C && point <= 0x20) || point == 0x85 || point == 0xA0 ||
         point == 0x1680 || (point >= 0x2000 && point <= 0x200A) || point == 0x2028 || point == 0x2029 ||
         point == 0x202F || point == 0x205F || point == 0x3000;
}

/// `text` without the white space at its end.
std::string_view without_end_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && is_utf8_tail(text[begin])) --begin;
    const Utf8Step last = utf8_step(text.substr(begin, end - begin));
    if (last.kind != Utf8Step::complete || !is_python_space(last.point)) break;
    end = begin;
  }
  return text.substr(0, end);
}

/// The default delimiter.
std::string space_between(std::string_view context, std::string_view choice) {
  const bool is_apart = without_end_space(context) != context || choice.find_first_not_of(" \t\n\r") != 0;
  return context.empty() || is_apart ? "" : " ";
}

[[noreturn]] void refuse_text(const char* subject, std::string fact, const char* action) {
  throw DataError({"evaluate", subject, std::move(fact), "", action});
}

/// Whether the largest of `scores`, the first of equal ones, is at `gold`.
bool is_right(const std::vector<double>& scores, int64_t gold) {
  return std::ranges::max_element(scores) - scores.begin() == gold;
}

Accuracy accuracy_of(int64_t right, int64_t count) {
  const double mean = static_cast<double>(right) / static_cast<double>(count);
  Accuracy accuracy{.mean = mean};
  if (count > 1) accuracy.standard_error = std::sqrt(mean * (1 - mean) / static_cast<double>(count - 1));
  return accuracy;
}

}  // namespace

ScoredText encode_continuation(const Tokenizer& tokenizer, std::string_view context, std::string_view continuation,
                               const ScoringLimits& limits) {
  const std::string_view begin = without_end_space(context);
  const std::vector<int32_t> whole = tokenizer.encode(std::string(context) + std::string(continuation));
  const std::vector<int32_t> before = tokenizer.encode(begin);
  ScoredText text{.ids = {before.begin(), before.end()}};
  if (text.ids.empty()) {
    if (!limits.begin)
      refuse_text("context", "is empty, and the model has no token that begins a text", "give the question a context");
    text.ids.push_back(*limits.begin);
  }
  text.num_scored = static_cast<int64_t>(whole.size()) - static_cast<int64_t>(before.size());
  if (text.num_scored < 1) refuse_text("continuation", "adds no token to its context", "give some text");
  if (text.num_scored > limits.context) {
    refuse_text("continuation",
                fmt::format("has {} tokens, but the model sees {} at once", text.num_scored, limits.context),
                "shorten it");
  }
  text.ids.insert(text.ids.end(), whole.end() - static_cast<std::ptrdiff_t>(text.num_scored), whole.end());
  // The last id is not an input.
  const int64_t dropped = std::max<int64_t>(static_cast<int64_t>(text.ids.size()) - limits.context - 1, 0);
  text.ids.erase(text.ids.begin(), text.ids.begin() + static_cast<std::ptrdiff_t>(dropped));
  if (const int64_t largest = *std::ranges::max_element(text.ids); largest >= limits.vocabulary) {
    refuse_text("tokenizer", fmt::format("has token {}, the model only {}", largest, limits.vocabulary),
                "use the tokenizer the model was trained with");
  }
  return text;
}

double log_likelihood(Model& model, const ScoredText& text) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = at::tensor(text.ids, at::kLong).unsqueeze(0);
  const int64_t inputs = ids.size(1) - 1;
  const at::Tensor labels = ids.narrow(1, 1, inputs).clone();
  labels.narrow(1, 0, inputs - text.num_scored).fill_(kIgnoredLabel);
  return -model.run({ids.narrow(1, 0, inputs), labels}, {.phase = Phase::evaluate}).front().item<double>();
}

EncodedQuestion encode_question(const Tokenizer& tokenizer, const Question& question,
                                const std::optional<std::string>& delimiter, const ScoringLimits& limits) {
  EncodedQuestion encoded{.gold = question.gold};
  for (const std::string& choice : question.choices) {
    if (choice.empty()) refuse_text("choices", "one of them is empty", "give each some text");
    encoded.choices.push_back(encode_continuation(
        tokenizer, question.context, delimiter.value_or(space_between(question.context, choice)) + choice, limits));
    const auto is_begin = [](char byte) { return !is_utf8_tail(byte); };
    encoded.lengths.push_back(static_cast<double>(std::ranges::count_if(choice, is_begin)));
  }
  return encoded;
}

ChoiceResult evaluate_choices(Model& model, Communicator& world, std::span<const EncodedQuestion> questions,
                              const std::function<void(int64_t done, int64_t total)>& progress) {
  const auto count = static_cast<int64_t>(questions.size());
  std::array<int64_t, 2> right{};
  // In step, so that no rank waits for another longer than one question takes.
  for (int64_t first = 0; first < count; first += world.size()) {
    if (progress) progress(first, count);
    std::array<int64_t, 2> round{};
    if (const int64_t own = first + world.rank(); own < count) {
      const EncodedQuestion& question = questions[static_cast<size_t>(own)];
      std::vector<double> plain, per_character;
      for (size_t i = 0; i < question.choices.size(); ++i) {
        plain.push_back(log_likelihood(model, question.choices[i]));
        per_character.push_back(plain.back() / question.lengths[i]);
        if (std::isnan(plain.back())) {
          throw NumericsError(
              {"evaluate", "log-likelihood", "is not a number", "", "use an earlier checkpoint of the model"});
        }
      }
      round = {is_right(plain, question.gold), is_right(per_character, question.gold)};
    }
    const Buffer buffer{round.data(), 2, Dtype::int64};
    world.all_reduce(buffer, buffer, ReduceOp::sum, "right answers");
    for (size_t i = 0; i < 2; ++i) right[i] += round[i];
  }
  return {accuracy_of(right[0], count), accuracy_of(right[1], count)};
}

}  // namespace caravan

#include "caravan/data/tasks/preference_task.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/nn/loss/ignored_label.h"

namespace caravan {
namespace {

/// The special tokens before a text.
std::vector<int32_t> beginning_of_texts(const Tokenizer& tokenizer) {
  const std::vector<int32_t> text = tokenizer.encode("a");
  const std::vector<int32_t> none;
  const std::vector<int32_t> around = tokenizer.with_special_tokens(none).ids;
  const std::vector<int32_t> with_text = tokenizer.with_special_tokens(text).ids;
  return {around.begin(), std::ranges::mismatch(around, with_text).in1};
}

}  // namespace

PreferenceTask::PreferenceTask(const Tokenizer& tokenizer, int64_t context, bool are_chats)
    : context_(context), pad_(filling_token(tokenizer)) {
  if (!are_chats) {
    begin_ = beginning_of_texts(tokenizer);
    end_ = {static_cast<int32_t>(end_token(tokenizer, "preference"))};
  }
  // A sequence has a token more than the inputs.
  const int64_t least = std::ssize(begin_) + std::ssize(end_) + 1;
  if (context >= least) return;
  throw ShapeError({"data", "model.context",
                    fmt::format("is {}: a row has no room for a token of prompt and of answer", context), "",
                    fmt::format("use at least {}", least)});
}

std::pair<int64_t, int64_t> PreferenceTask::truncated(const RecordList::Size& record) const {
  const int64_t room = context_ + 1 - std::ssize(begin_) - std::ssize(end_);
  return longest_first(record.first, std::max(record.second, record.third), room);
}

bool PreferenceTask::is_idle(const RecordList& records, int64_t record) const {
  const RecordList::Size size = records.size_of(record);
  const int64_t answer = truncated(size).second;
  const int64_t count = std::min(size.second, answer);
  if (count != std::min(size.third, answer)) return false;
  const RecordList::Texts texts = records.read(record);
  return std::equal(texts.second.begin(), texts.second.begin() + count, texts.third.begin());
}

void PreferenceTask::fill(const RecordList::Texts& record, const RowBuffers& row) const {
  const auto [prompt, answer] = truncated(
      {.first = std::ssize(record.first), .second = std::ssize(record.second), .third = std::ssize(record.third)});
  const auto last_tokens = std::span(record.first).last(static_cast<size_t>(prompt));
  int64_t index = 0;
  for (const auto* text : {&record.second, &record.third}) {
    const auto count = static_cast<size_t>(std::min<int64_t>(std::ssize(*text), answer));
    fill_sequence(last_tokens, std::span(*text).first(count), row.row(index++, context_));
  }
}

void PreferenceTask::fill_sequence(std::span<const int32_t> prompt, std::span<const int32_t> answer,
                                   const RowBuffers& sequence) const {
  std::vector<int64_t> tokens(begin_.begin(), begin_.end());
  tokens.insert(tokens.end(), prompt.begin(), prompt.end());
  const size_t first = std::max<size_t>(tokens.size(), 1);  // what nothing precedes is no target
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  tokens.insert(tokens.end(), end_.begin(), end_.end());
  std::ranges::fill(sequence.ids, pad_);
  std::ranges::fill(sequence.labels, kIgnoredLabel);
  std::copy(tokens.begin(), tokens.end() - 1, sequence.ids.begin());
  for (size_t t = first; t < tokens.size(); ++t) sequence.labels[t - 1] = tokens[t];
}

}  // namespace caravan

#include "caravan/data/tasks/masked_task.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/random.h"
#include "caravan/nn/loss/ignored_label.h"

namespace caravan {

MaskedTask::MaskedTask(const Tokenizer& tokenizer, int64_t context, const MaskRule& rule)
    : context_(context), rule_(rule) {
  const std::optional<int32_t> mask = tokenizer.mask_token();
  if (!mask) {
    throw UsageError({"data", "data.task", "\"masked\" replaces tokens by a mask token, and the tokenizer has none", "",
                      "use a tokenizer with a mask_token, as BERT's: data.tokenizer = \"FOLDER/tokenizer.json\""});
  }
  mask_ = *mask;
  if (tokenizer.cls_token() && tokenizer.sep_token()) {
    begin_ = *tokenizer.cls_token();
    end_ = *tokenizer.sep_token();
  }
  if (window() < 1) {
    throw ShapeError({"data", "model.context",
                      fmt::format("is {}: a row has no room for a token of text{}", context,
                                  begin_ ? " between the tokenizer's special tokens" : ""),
                      "", "use at least 3"});
  }
  parts_ = rule.whole_words ? word_parts(tokenizer) : special_parts(tokenizer);
}

int64_t MaskedTask::most_targets() const {
  // Python's round, as in BERT: half to even.
  const auto rounded = static_cast<int64_t>(std::nearbyint(rule_.rate * static_cast<double>(context_)));
  return std::max<int64_t>(1, rounded);
}

std::vector<MaskedTask::Word> MaskedTask::words_of(std::span<const int64_t> window) const {
  std::vector<Word> words;
  bool is_in_word = false;
  for (size_t t = 0; t < window.size(); ++t) {
    const WordPart part = parts_.at(static_cast<size_t>(window[t]));
    if (part == WordPart::continues && is_in_word) {
      ++words.back().count;
    } else if (part != WordPart::special) {
      words.push_back({static_cast<int64_t>(t), 1});
    }
    is_in_word = part != WordPart::special;
  }
  return words;
}

/// The indices in the window that are targets.
std::vector<int64_t> MaskedTask::choose(std::span<const int64_t> window, uint64_t seed, int64_t sample) const {
  const std::vector<Word> words = words_of(window);
  const RandomPermutation order(seed, "data.mask", sample, words.size());
  const auto most = static_cast<size_t>(most_targets());
  std::vector<int64_t> chosen;
  for (uint64_t i = 0; i < words.size() && chosen.size() < most; ++i) {
    const Word& word = words[order(i)];
    if (chosen.size() + static_cast<size_t>(word.count) > most) continue;
    for (int64_t t = word.first; t < word.first + word.count; ++t) chosen.push_back(t);
  }
  return chosen;
}

int64_t MaskedTask::num_targets(std::span<const int64_t> window, uint64_t seed, int64_t sample) const {
  if (rule_.whole_words) return static_cast<int64_t>(choose(window, seed, sample).size());
  const auto is_candidate = [&](int64_t id) { return parts_.at(static_cast<size_t>(id)) != WordPart::special; };
  return std::min(most_targets(), static_cast<int64_t>(std::ranges::count_if(window, is_candidate)));
}

void MaskedTask::fill(std::span<const int64_t> window, uint64_t seed, int64_t sample, const RowBuffers& row) const {
  const size_t first = begin_ ? 1 : 0;
  std::ranges::copy(window, row.ids.begin() + static_cast<std::ptrdiff_t>(first));
  if (begin_) {
    row.ids.front() = *begin_;
    row.ids.back() = end_;
  }
  std::ranges::fill(row.labels, kIgnoredLabel);
  const RandomStream random(seed, "data.mask.token", sample);
  for (const int64_t chosen : choose(window, seed, sample)) {
    const auto t = static_cast<uint64_t>(chosen);
    int64_t& id = row.ids[first + t];
    row.labels[first + t] = id;
    const uint64_t tenth = uint64_t{random.bits(2 * t)} * 10 >> 32;
    if (tenth < 8) id = mask_;
    if (tenth == 8) id = static_cast<int64_t>(uint64_t{random.bits(2 * t + 1)} * parts_.size() >> 32);
  }
}

}  // namespace caravan

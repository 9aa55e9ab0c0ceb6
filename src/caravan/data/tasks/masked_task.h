#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "caravan/data/tasks/window_task.h"
#include "caravan/data/tasks/word_parts.h"
#include "caravan/data/tokenizer/tokenizer.h"

namespace caravan {

struct MaskRule {
  double rate = 0.15;  ///< of the tokens of a row that are targets
  bool whole_words = false;
};

/// Masked language modelling by the rule of BERT (Devlin et al., arXiv 1810.04805, and create_pretraining_data.py). A
/// row is [CLS] window [SEP], or a window alone if the tokenizer lacks one of them. Of the row's n tokens,
/// max(1, round(rate n)) are targets, those of [CLS] and [SEP] counted in n; fewer if the window has fewer tokens that
/// are not special. Special tokens are never chosen. Of the chosen tokens each becomes, by itself, the mask token with
/// probability 0.8, a random token of the vocabulary with 0.1, or stays. labels[t] is the original of ids[t].
///
/// With whole words, words are chosen in random order, as long as their tokens fit into that number; a word that does
/// not fit is passed over, so that there may be fewer targets, or none in a row whose words are all longer.
///
/// Rows have no padding and no documents.
class MaskedTask final : public WindowTask {
 public:
  /// Throws UsageError for a tokenizer without a mask token, and as word_parts; ShapeError for a context too short for
  /// one token of text.
  MaskedTask(const Tokenizer& tokenizer, int64_t context, const MaskRule& rule);

  RowShape shape() const override { return {.length = context_}; }
  int64_t window() const override { return context_ - (begin_ ? 2 : 0); }
  void fill(std::span<const int64_t> window, uint64_t seed, int64_t sample, const RowBuffers& row) const override;
  int64_t num_targets(std::span<const int64_t> window, uint64_t seed, int64_t sample) const override;
  using WindowTask::num_targets;

 private:
  struct Word {
    int64_t first;
    int64_t count;
  };
  int64_t most_targets() const;
  std::vector<Word> words_of(std::span<const int64_t> window) const;
  std::vector<int64_t> choose(std::span<const int64_t> window, uint64_t seed, int64_t sample) const;

  int64_t context_;
  MaskRule rule_;
  int64_t mask_ = 0;
  std::optional<int64_t> begin_{};  ///< [CLS]; with it there is an end
  int64_t end_ = 0;
  std::vector<WordPart> parts_;  ///< by id; without whole words every token but special ones begins a word
};

}  // namespace caravan

#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "caravan/data/tasks/record_task.h"

namespace caravan {

/// Preferences: a prompt, and a chosen and a rejected answer to it.
///
/// A row is a pair of sequences of `context` tokens, [prompt, chosen, end | prompt, rejected, end], each as inputs and
/// next tokens, padded at the end. Labels are those of the answer and its end only. The prompt has the special tokens
/// that the tokenizer begins a text with. Texts of chats have special tokens and ends already. A pair that is too long
/// loses tokens as longest_first does, of the prompt and the longer answer, for both sequences alike: the prompt its
/// first tokens, answers their last ones.
class PreferenceTask final : public RecordTask {
 public:
  /// Throws UsageError for a tokenizer without an end token (unless texts are chats), ShapeError for a context without
  /// room for a token of each text.
  PreferenceTask(const Tokenizer& tokenizer, int64_t context, bool are_chats);

  RowShape shape() const override { return {.length = 2 * context_, .num_sequences = 2}; }
  void fill(const RecordList::Texts& record, const RowBuffers& row) const override;
  /// The loss is a mean over pairs.
  int64_t num_targets(const RecordList::Size& /*record*/) const override { return 1; }
  /// Both answers are the same after truncation.
  bool is_idle(const RecordList& records, int64_t record) const override;

 private:
  /// What is left of the prompt and of the longer answer.
  std::pair<int64_t, int64_t> truncated(const RecordList::Size& record) const;
  void fill_sequence(std::span<const int32_t> prompt, std::span<const int32_t> answer,
                     const RowBuffers& sequence) const;

  int64_t context_;
  int64_t pad_;
  std::vector<int32_t> begin_{};  ///< of each sequence
  std::vector<int32_t> end_{};
};

}  // namespace caravan

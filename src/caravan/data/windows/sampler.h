#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "caravan/data/chat/chat_tokens.h"
#include "caravan/data/files/documents.h"
#include "caravan/data/tasks/task_rows.h"
#include "caravan/data/windows/token_file.h"

namespace caravan {

/// The order in which training visits a text. Sample k is a window of context + 1 tokens. It depends only on
/// (num_tokens, context, seed, k).
///
/// Each epoch splits the text into windows that share no target, starting at a random phase, and visits each window
/// once in random order. The tokens before the first and after the last window (fewer than two windows) are used in
/// other epochs.
class Sampler {
 public:
  /// Throws DataError for a text shorter than context + 1 tokens, naming both numbers and the text's `name`; ShapeError
  /// for context < 1.
  Sampler(int64_t num_tokens, int64_t context, uint64_t seed, const std::string& name = "");

  int64_t context() const noexcept { return context_; }
  int64_t windows_per_epoch() const noexcept { return num_windows_; }

  /// First token of the window of sample k >= 0; the window is tokens [offset, offset + context + 1).
  int64_t offset(int64_t sample) const;

 private:
  int64_t context_;
  uint64_t seed_;
  int64_t num_windows_;
  int64_t num_phases_;
};

/// The number of rows of `context` elements in both buffers. Throws ShapeError if either does not hold whole rows, or
/// if their sizes differ.
int64_t num_rows(int64_t context, std::span<int64_t> input_ids, std::span<int64_t> labels);
std::span<int64_t> row_of(std::span<int64_t> all, int64_t row, int64_t context);

/// The windows of an evaluation: every token except the first is a target in exactly one of them, with at most
/// `context` tokens before it as input. Windows begin `stride` tokens apart. If they overlap (stride < context), the
/// first context - stride targets of each window but the first belong to the previous window and are left out. So all
/// others have at least context - stride tokens before them, at context / stride times the work.
class ValidationWindows final : public ValidationRows {
 public:
  /// `documents`: the documents of the text, which do not see each other; null: the text is one document. `marks`: the
  /// marks of chats; null: all tokens are targets. Default stride: the context. Both outlive the windows. Throws
  /// DataError for a text of fewer than 2 tokens, ShapeError for context < 1 or a stride that is not from 1 to context.
  ValidationWindows(const TokenFile& tokens, int64_t context, const Documents* documents = nullptr,
                    std::optional<int64_t> stride = {}, const TokenFile* marks = nullptr);

  int64_t context() const noexcept { return context_; }
  int64_t size() const noexcept override { return last() <= context_ ? 1 : 2 + (last() - context_ - 1) / stride_; }
  int64_t num_targets() const override;
  RowShape shape() const override;
  const Documents* documents() const noexcept { return documents_; }
  int64_t text_bytes() const noexcept override { return tokens_.info().text_bytes; }

  void fill(int64_t first, const RowBuffers& rows) const override {
    fill(first, rows.ids, rows.labels, rows.documents, rows.positions);
  }
  /// Fills rows as TrainWindows::fill does with the windows from `first_window` on. The last window, and rows after it,
  /// are padded with token 0 and kIgnoredLabel, so that every rank can fill the same number of rows.
  /// `documents` and `positions` are used only if the windows have documents: see Documents::mark.
  void fill(int64_t first_window, std::span<int64_t> input_ids, std::span<int64_t> labels,
            std::span<int64_t> documents = {}, std::span<int64_t> positions = {}) const;

 private:
  int64_t last() const noexcept { return tokens_.size() - 1; }  ///< number of inputs of all windows

  const TokenFile& tokens_;
  int64_t context_;
  int64_t stride_;
  const Documents* documents_;
  const TokenFile* marks_;
};

}  // namespace caravan

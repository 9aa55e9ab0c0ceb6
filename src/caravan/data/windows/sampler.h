#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "caravan/data/files/documents.h"
#include "caravan/data/tasks/task_rows.h"
#include "caravan/data/windows/pieces.h"
#include "caravan/data/windows/token_file.h"
#include "caravan/data/windows/whole_documents.h"

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

/// The rows of an evaluation: windows of a text, or its whole documents in sequences.
///
/// Of windows, every token except the first is a target in exactly one, with at most `context` tokens before it as
/// input. Windows begin `stride` tokens apart. If they overlap (stride < context), the first context - stride targets
/// of each window but the first belong to the previous window and are left out. So all others have at least context -
/// stride tokens before them, at context / stride times the work.
class ValidationWindows final : public ValidationRows {
 public:
  /// `documents`: the documents of the text, which do not see each other; null: the text is one document. `marks`: the
  /// marks of chats; null: all tokens are targets. Default stride: the context. Both outlive the windows. Throws
  /// DataError for a text of fewer than 2 tokens, ShapeError for context < 1 or a stride that is not from 1 to context.
  ValidationWindows(const TokenFile& tokens, int64_t context, const Documents* documents = nullptr,
                    std::optional<int64_t> stride = {}, const TokenFile* marks = nullptr);
  /// The sequences of `whole`, which is made of this text, in their order. Throws DataError if there are none.
  ValidationWindows(const RowText& text, std::shared_ptr<const WholeDocuments> whole);

  int64_t context() const noexcept { return context_; }
  int64_t size() const noexcept override;
  int64_t num_targets() const override;
  RowShape shape() const override;
  /// The first tokens of documents are not targets, and are taken to have the average number of bytes.
  int64_t text_bytes() const override;

  /// The last window, and rows after it, are padded, so that every rank can fill the same number of rows.
  void fill(int64_t first, const RowBuffers& rows) const override;
  void fill(int64_t first, std::span<int64_t> input_ids, std::span<int64_t> labels, std::span<int64_t> documents = {},
            std::span<int64_t> positions = {}) const {
    fill(first, {.ids = input_ids, .labels = labels, .documents = documents, .positions = positions});
  }

 private:
  int64_t last() const noexcept { return text_.tokens->size() - 1; }  ///< number of inputs of all windows
  std::vector<TextPiece> pieces_of(int64_t row) const;

  RowText text_;
  int64_t context_;
  int64_t stride_;
  std::shared_ptr<const WholeDocuments> whole_{};  ///< null: rows are windows
};

}  // namespace caravan

#pragma once

#include <cstdint>
#include <span>

#include "caravan/data/files/documents.h"
#include "caravan/data/tasks/task_rows.h"
#include "caravan/data/windows/token_file.h"

namespace caravan {

/// Consecutive tokens of a text: a window of it, or a document or a part of one.
struct TextPiece {
  int64_t first = 0;
  int64_t count = 0;
  bool is_end = false;  ///< ends with its document: what comes next in the text is no target
  bool operator==(const TextPiece&) const = default;
};

/// A text, and which of its tokens are targets and see each other.
struct RowText {
  const TokenFile* tokens;
  const Documents* documents = nullptr;  ///< which do not see each other; null: the text is one document
  const TokenFile* marks = nullptr;      ///< of chats; null: all tokens are targets
};

/// Fills a row with pieces of a text, one after another. A label is the token that follows in the text, kIgnoredLabel
/// at the end of a piece that is_end. The rest is padding: token 0 without a target, in a document of its own.
/// `row.documents` and `row.positions` are used only if the text has documents: see Documents::mark.
void fill_row(const RowText& text, std::span<const TextPiece> pieces, const RowBuffers& row);

}  // namespace caravan

#include "caravan/data/windows/pieces.h"

#include <algorithm>

#include "caravan/data/chat/chat_tokens.h"
#include "caravan/nn/loss/ignored_label.h"

namespace caravan {

void fill_row(const RowText& text, std::span<const TextPiece> pieces, const RowBuffers& row) {
  const bool has_documents = text.documents != nullptr;
  const bool goes_on = has_documents && !text.documents->restarts();
  size_t at = 0;
  int64_t document = 0;
  for (const TextPiece& piece : pieces) {
    const auto count = static_cast<size_t>(piece.count);
    const std::span<int64_t> labels = row.labels.subspan(at, count);
    const std::span<int64_t> targets = labels.first(count - (piece.is_end ? 1 : 0));
    text.tokens->read(piece.first, row.ids.subspan(at, count));
    text.tokens->read(piece.first + 1, targets);
    if (text.marks != nullptr) mark_answers(*text.marks, piece.first, targets);
    if (piece.is_end) labels.back() = kIgnoredLabel;
    if (has_documents) {
      const std::span<int64_t> documents = row.documents.subspan(at, count);
      const std::span<int64_t> positions = row.positions.subspan(at, count);
      text.documents->mark(piece.first, labels, documents, positions);
      for (int64_t& one : documents) one += document;
      for (int64_t& one : positions) one += goes_on ? static_cast<int64_t>(at) : 0;
      document = documents.back() + 1;
    }
    at += count;
  }
  std::ranges::fill(row.ids.subspan(at), 0);
  std::ranges::fill(row.labels.subspan(at), kIgnoredLabel);
  if (!has_documents) return;
  std::ranges::fill(row.documents.subspan(at), document);
  for (size_t t = at; t < row.positions.size(); ++t) row.positions[t] = static_cast<int64_t>(goes_on ? t : t - at);
}

}  // namespace caravan

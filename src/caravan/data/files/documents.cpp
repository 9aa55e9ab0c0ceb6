#include "caravan/data/files/documents.h"

#include <algorithm>

#include "caravan/base/error.h"
#include "caravan/nn/loss/ignored_label.h"

namespace caravan {

Documents::Documents(const TokenFile& tokens, int64_t end_of_text, bool restarts)
    : Documents(
          tokens, [end_of_text](int64_t id) { return id == end_of_text; }, restarts) {}

Documents::Documents(const TokenFile& tokens, const std::function<bool(int64_t)>& is_end, bool restarts)
    : restarts_(restarts) {
  constexpr int64_t kAtOnce = int64_t{1} << 16;
  std::vector<int64_t> ids(static_cast<size_t>(std::min(kAtOnce, tokens.size())));
  for (int64_t first = 0; first < tokens.size(); first += kAtOnce) {
    const auto count = std::min(kAtOnce, tokens.size() - first);
    tokens.read(first, std::span(ids).first(static_cast<size_t>(count)));
    for (int64_t i = 0; i < count; ++i) {
      if (is_end(ids[static_cast<size_t>(i)])) ends_.push_back(first + i);
    }
  }
}

int64_t Documents::num_ends(int64_t first, int64_t count) const {
  return std::ranges::lower_bound(ends_, first + count) - std::ranges::lower_bound(ends_, first);
}

void Documents::mark(int64_t first, std::span<int64_t> labels, std::span<int64_t> documents,
                     std::span<int64_t> positions) const {
  const size_t count = labels.size();
  if (documents.size() != count || positions.size() != count) {
    throw InternalError({"data", "documents", "rows of different lengths", "", ""});
  }
  auto end = std::ranges::lower_bound(ends_, first);
  int64_t document = 0;
  int64_t position = 0;
  for (size_t t = 0; t < count; ++t) {
    documents[t] = document;
    positions[t] = position++;
    if (end == ends_.end() || *end != first + static_cast<int64_t>(t)) continue;
    ++end;
    labels[t] = kIgnoredLabel;
    ++document;
    if (restarts_) position = 0;
  }
}

}  // namespace caravan

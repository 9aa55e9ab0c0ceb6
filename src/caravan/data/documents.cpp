#include "caravan/data/documents.h"

#include <algorithm>

#include "caravan/base/error.h"
#include "caravan/data/sampler.h"

namespace caravan {

Documents::Documents(const TokenFile& tokens, int64_t end_of_text, bool restarts)
    : end_of_text_(end_of_text), restarts_(restarts) {
  constexpr int64_t kAtOnce = int64_t{1} << 16;
  std::vector<int64_t> ids(static_cast<size_t>(std::min(kAtOnce, tokens.size())));
  for (int64_t first = 0; first < tokens.size(); first += kAtOnce) {
    const auto count = std::min(kAtOnce, tokens.size() - first);
    tokens.read(first, std::span(ids).first(static_cast<size_t>(count)));
    for (int64_t i = 0; i < count; ++i) {
      if (ids[static_cast<size_t>(i)] == end_of_text) ends_.push_back(first + i);
    }
  }
}

int64_t Documents::num_ends(int64_t first, int64_t count) const {
  return std::ranges::lower_bound(ends_, first + count) - std::ranges::lower_bound(ends_, first);
}

void Documents::mark(std::span<const int64_t> input_ids, std::span<int64_t> labels, std::span<int64_t> documents,
                     std::span<int64_t> positions) const {
  const size_t count = input_ids.size();
  if (labels.size() != count || documents.size() != count || positions.size() != count) {
    throw InternalError({"data", "documents", "rows of different lengths", "", ""});
  }
  int64_t document = 0;
  int64_t position = 0;
  for (size_t t = 0; t < count; ++t) {
    documents[t] = document;
    positions[t] = position++;
    if (input_ids[t] != end_of_text_) continue;
    labels[t] = kNoTarget;
    ++document;
    if (restarts_) position = 0;
  }
}

}  // namespace caravan

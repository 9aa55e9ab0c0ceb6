#include "caravan/data/tasks/sequence_pair.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/nn/loss/ignored_label.h"

namespace caravan {

void fill_sequence_pair(std::span<const int64_t> source, std::span<const int64_t> target,
                        const SequencePairLayout& layout, const RowBuffers& row) {
  const auto num_sources = static_cast<size_t>(layout.num_sources);
  if (source.size() > num_sources || target.empty() || target.size() > row.ids.size() - num_sources) {
    throw InternalError({"data", "a row",
                         fmt::format("of {} + {} positions for {} and {} tokens", num_sources,
                                     row.ids.size() - num_sources, source.size(), target.size()),
                         "", ""});
  }
  std::ranges::fill(row.ids, layout.pad);
  std::ranges::fill(row.labels, kIgnoredLabel);
  std::ranges::copy(source, row.ids.begin());
  const std::span<int64_t> inputs = row.ids.subspan(num_sources);
  inputs.front() = layout.start;
  std::ranges::copy(target.first(target.size() - 1), inputs.begin() + 1);
  std::ranges::copy(target, row.labels.subspan(num_sources).begin());
  if (row.documents.empty()) return;
  std::ranges::fill(row.documents, 1);
  std::ranges::fill(row.documents.first(num_sources).subspan(source.size()), 0);
}

int64_t end_token(const Tokenizer& tokenizer, const char* task) {
  if (const auto end = tokenizer.end_of_text()) return *end;
  if (const auto end = tokenizer.sep_token()) return *end;
  throw UsageError({"data", "data.task",
                    fmt::format("\"{}\" ends texts with the tokenizer's end-of-text token, and it has none", task), "",
                    "use a tokenizer with an eos_token"});
}

int64_t filling_token(const Tokenizer& tokenizer) {
  return tokenizer.pad_token().value_or(tokenizer.end_of_text().value_or(0));
}

}  // namespace caravan

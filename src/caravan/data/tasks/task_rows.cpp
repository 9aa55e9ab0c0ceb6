#include "caravan/data/tasks/task_rows.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/nn/loss/ignored_label.h"

namespace caravan {

int64_t RowBuffers::num_rows(const RowShape& shape) const {
  const auto size = static_cast<int64_t>(ids.size());
  const auto fits = [&](bool is_used, std::span<int64_t> part) {
    return !is_used || static_cast<int64_t>(part.size()) == size;
  };
  if (size % shape.length == 0 && fits(true, labels) && fits(shape.has_documents, documents) &&
      fits(shape.has_positions, positions) && fits(shape.has_token_types, token_types)) {
    return size / shape.length;
  }
  throw ShapeError(
      {.op = "data",
       .subject = "a batch",
       .fact = fmt::format("of {} input ids, {} labels, {} documents, {} positions and {} types, in rows of {}", size,
                           labels.size(), documents.size(), positions.size(), token_types.size(), shape.length),
       .action = "give rows * length elements of each part that the rows have"});
}

RowBuffers RowBuffers::row(int64_t index, int64_t length) const {
  const auto cut = [&](std::span<int64_t> all) {
    return all.empty() ? all : all.subspan(static_cast<size_t>(index * length), static_cast<size_t>(length));
  };
  return {cut(ids), cut(labels), cut(documents), cut(positions), cut(token_types)};
}

void fill_padding(const RowBuffers& row) {
  std::ranges::fill(row.ids, 0);
  std::ranges::fill(row.labels, kIgnoredLabel);
  std::ranges::fill(row.documents, 0);
  for (size_t i = 0; i < row.positions.size(); ++i) row.positions[i] = static_cast<int64_t>(i);
  std::ranges::fill(row.token_types, 0);
}

}  // namespace caravan

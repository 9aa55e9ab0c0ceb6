#include "caravan/formats/checkpoint/shard_copy.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace caravan {

bool overlaps(const Box& a, const Box& b) noexcept {
  for (size_t d = 0; d < a.size.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    if (begin >= std::min(a.offset[d] + a.size[d], b.offset[d] + b.size[d])) return false;
  }
  return true;
}

void copy_overlap(const Box& from, std::span<const std::byte> source, const Box& to, std::span<std::byte> target,
                  int64_t element_bytes) {
  const size_t dims = from.size.size();
  if (dims == 0) {
    std::memcpy(target.data(), source.data(), static_cast<size_t>(element_bytes));
    return;
  }
  std::vector<int64_t> begin(dims), end(dims);
  for (size_t d = 0; d < dims; ++d) {
    begin[d] = std::max(from.offset[d], to.offset[d]);
    end[d] = std::min(from.offset[d] + from.size[d], to.offset[d] + to.size[d]);
    if (begin[d] >= end[d]) return;
  }
  // Copies rows of the last dim; `at` iterates over the other dims.
  const auto place = [&](const Box& box, const std::vector<int64_t>& at) {
    int64_t index = 0;
    for (size_t d = 0; d < dims; ++d) index = index * box.size[d] + at[d] - box.offset[d];
    return index * element_bytes;
  };
  const int64_t row_bytes = (end[dims - 1] - begin[dims - 1]) * element_bytes;
  std::vector<int64_t> at = begin;
  while (true) {
    std::memcpy(target.data() + place(to, at), source.data() + place(from, at), static_cast<size_t>(row_bytes));
    size_t d = dims - 1;
    while (d-- > 0) {
      if (++at[d] < end[d]) break;
      at[d] = begin[d];
    }
    if (d == SIZE_MAX) return;
  }
}

}  // namespace caravan

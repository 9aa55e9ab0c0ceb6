#include "caravan/comm/backends/hierarchical/parts.h"

#include <cstring>
#include <numeric>

namespace caravan::hierarchical {
namespace {

template <class Copy>
void for_each_part(std::span<const int64_t> counts, std::span<const int> ranks, int64_t elem_bytes, const Copy& copy) {
  const std::vector<int64_t> begins = begins_of(counts);
  int64_t packed = 0;
  for (const int rank : ranks) {
    const int64_t bytes = counts[static_cast<size_t>(rank)] * elem_bytes;
    if (bytes > 0) copy(packed, begins[static_cast<size_t>(rank)] * elem_bytes, static_cast<size_t>(bytes));
    packed += bytes;
  }
}

}  // namespace

std::vector<int64_t> begins_of(std::span<const int64_t> counts) {
  std::vector<int64_t> begins{0};
  for (const int64_t count : counts) begins.push_back(begins.back() + count);
  return begins;
}

int64_t sum_of(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

std::vector<int64_t> equal_parts(int64_t count, int64_t n) {
  std::vector<int64_t> parts;
  for (int64_t i = 0; i < n; ++i) parts.push_back(count * (i + 1) / n - count * i / n);
  return parts;
}

std::vector<int64_t> counts_of(std::span<const int64_t> counts, std::span<const int> ranks) {
  std::vector<int64_t> result;
  for (const int rank : ranks) result.push_back(counts[static_cast<size_t>(rank)]);
  return result;
}

void pack(const std::byte* in, std::span<const int64_t> counts, std::span<const int> ranks, int64_t elem_bytes,
          std::byte* out) {
  for_each_part(counts, ranks, elem_bytes,
                [&](int64_t packed, int64_t begin, size_t bytes) { std::memcpy(out + packed, in + begin, bytes); });
}

void unpack(const std::byte* in, std::span<const int64_t> counts, std::span<const int> ranks, int64_t elem_bytes,
            std::byte* out) {
  for_each_part(counts, ranks, elem_bytes,
                [&](int64_t packed, int64_t begin, size_t bytes) { std::memcpy(out + begin, in + packed, bytes); });
}

}  // namespace caravan::hierarchical

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace caravan::hierarchical {

/// The begin of each part, and the end of the last.
std::vector<int64_t> begins_of(std::span<const int64_t> counts);
int64_t sum_of(std::span<const int64_t> counts);
/// `count` in `n` nearly equal parts.
std::vector<int64_t> equal_parts(int64_t count, int64_t n);
/// counts[ranks[0]], counts[ranks[1]], ..
std::vector<int64_t> counts_of(std::span<const int64_t> counts, std::span<const int> ranks);

/// pack copies the parts of `ranks` from `in`, which has the parts of all ranks in rank order, to `out`, in the order
/// of `ranks`; unpack copies them back. `counts` has the elements of all ranks.
void pack(const std::byte* in, std::span<const int64_t> counts, std::span<const int> ranks, int64_t elem_bytes,
          std::byte* out);
void unpack(const std::byte* in, std::span<const int64_t> counts, std::span<const int> ranks, int64_t elem_bytes,
            std::byte* out);

}  // namespace caravan::hierarchical

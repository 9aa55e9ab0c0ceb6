#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "caravan/mesh/layout.h"

namespace caravan {

/// Whether two boxes of one global tensor have an element in common.
bool overlaps(const Box& a, const Box& b) noexcept;

/// Copies the intersection of two boxes of one global tensor from `source`, the row-major bytes of box `from`, to
/// `target`, the bytes of box `to`. The intersection may be empty.
void copy_overlap(const Box& from, std::span<const std::byte> source, const Box& to, std::span<std::byte> target,
                  int64_t element_bytes);

}  // namespace caravan

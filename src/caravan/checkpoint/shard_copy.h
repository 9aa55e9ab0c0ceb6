#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "caravan/mesh/layout.h"

namespace caravan {

/// Copies what box `from` and box `to` of one global tensor have in common: from `source`, the row-major bytes of
/// `from`, into `target`, those of `to`. The two may have no element in common.
void copy_overlap(const Box& from, std::span<const std::byte> source, const Box& to, std::span<std::byte> target,
                  int64_t element_bytes);

}  // namespace caravan

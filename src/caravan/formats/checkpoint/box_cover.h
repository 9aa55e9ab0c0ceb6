#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "caravan/mesh/layout.h"

namespace caravan {

/// The largest number of cut dims that covers_once supports.
inline constexpr size_t kMostCutDims = 8;

/// The dims in which some box does not span all of `shape`. Boxes have as many dims as `shape` and lie inside it.
std::vector<size_t> cut_dims(const std::vector<int64_t>& shape, const std::vector<Box>& boxes);

/// Whether each element of a tensor of `shape` lies in exactly one of the boxes, which lie inside it and are cut along
/// at most kMostCutDims dims. Takes n log n steps for n boxes, times 2 for each cut dim.
bool covers_once(const std::vector<int64_t>& shape, const std::vector<Box>& boxes);

}  // namespace caravan

#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace caravan {

/// Items in bins.
struct Bins {
  std::vector<uint32_t> of_item;  ///< the bin of each; bins are numbered in the order of their first items
  uint32_t count = 0;
};

/// Puts items of these sizes, 1 to `room` each, into bins of `room`: from the largest item to the smallest, each into
/// the fullest bin that has room for it (best-fit decreasing). Items of equal size are taken in their order, and of
/// bins with equal room the one that was used last, so that the result depends on the arguments only. Takes
/// O(items log room) and, besides the result, 12 bytes an item and 8 for each unit of room.
Bins best_fit_decreasing(std::span<const uint32_t> sizes, uint32_t room);

}  // namespace caravan

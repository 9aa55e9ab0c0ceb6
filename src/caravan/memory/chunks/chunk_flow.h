#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace caravan {

/// An interval of moments that takes `size` of their room while it is kept.
struct RoomInterval {
  int first = 0;  ///< moments first .. last
  int last = 0;
  int64_t size = 0;
  int64_t profit = 0;  ///< of keeping it wholly; a part of it brings a part of the profit
};

struct KeptIntervals {
  double profit = 0;            ///< the largest that is possible if intervals may be kept in part; never too small
  std::vector<int64_t> kept{};  ///< by interval: how much of its size
};

/// Which intervals to keep in the room of each moment, by minimum-cost flow along the moments: exact where all sizes
/// are equal and divide the room, since the matrix of intervals is totally unimodular; else a bound.
KeptIntervals keep_intervals(std::span<const RoomInterval> intervals, std::span<const int64_t> room);

}  // namespace caravan

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "caravan/comm/types.h"

namespace caravan::measure {

/// Whole numbers that repeat along an index, as elements of one dtype: cheap to write and to compare at any length.
/// Numbers are so small that sums over up to 256 ranks are exact in every dtype (wrapped around in uint8).
class Pattern {
 public:
  /// What rank `rank` of `num_ranks` puts in at each index.
  static Pattern of_rank(Dtype dtype, int rank, int num_ranks);
  /// What comes out of a reduction of all ranks: the sum; of booleans, which have none, their maximum.
  static Pattern reduced(Dtype dtype, int num_ranks);

  /// Writes elements number first, first + 1, .. of the pattern to data[0], data[1], ..
  void write(void* data, int64_t count, int64_t first = 0) const;
  /// "" if data[0..count) are elements number first, first + 1, .., else the first difference in words.
  std::string difference(const void* data, int64_t count, int64_t first = 0) const;

 private:
  Pattern(Dtype dtype, std::vector<double> numbers);

  Dtype dtype_;
  std::vector<double> numbers_;
  std::vector<std::byte> block_;  ///< the numbers, many times, and once more for a start in their middle
  int64_t block_count_ = 0;       ///< elements that can be taken from it at any start
};

/// The reduction that patterns of a dtype are checked with: the sum, the maximum for booleans.
ReduceOp checked_op(Dtype dtype) noexcept;

}  // namespace caravan::measure

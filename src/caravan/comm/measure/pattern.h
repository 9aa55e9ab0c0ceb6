#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "caravan/comm/types.h"

namespace caravan::measure {

/// A periodic sequence of numbers of one dtype: cheap to write and to compare at any length. For results that are
/// checked, they are integers so small that sums over up to 256 ranks are exact in every dtype (uint8 wraps around).
class Pattern {
 public:
  /// The input of rank `rank` of `num_ranks`.
  static Pattern of_rank(Dtype dtype, int rank, int num_ranks);
  /// The result of checked_op over all ranks' inputs.
  static Pattern reduced(Dtype dtype, int num_ranks);

  /// Random numbers, different on each rank: floats in [-1, 1) with full mantissas, integers in [-100, 100), booleans.
  static Pattern random(Dtype dtype, int rank);

  /// data[i] = element first + i of the sequence, for i < count.
  void write(void* data, int64_t count, int64_t first = 0) const;
  /// Compares with what write() writes: "" if equal, else a text about the first difference.
  std::string difference(const void* data, int64_t count, int64_t first = 0) const;

 private:
  Pattern(Dtype dtype, std::vector<double> numbers);

  Dtype dtype_;
  std::vector<double> numbers_;
  std::vector<std::byte> block_;  ///< the period, repeated, and once more so that a copy can start anywhere in it
  int64_t block_count_ = 0;       ///< elements that can be copied from any start
};

/// The reduction that is measured and checked: sum, or max for booleans.
ReduceOp checked_op(Dtype dtype) noexcept;

}  // namespace caravan::measure

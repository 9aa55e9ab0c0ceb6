#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace caravan {

/// How stale gradients were when they were applied: the updates of a shard between the values that a worker computed
/// with and its own update. With n workers in lock step it is 0 to n-1.
class StalenessCounts {
 public:
  static constexpr size_t kBins = 65;  ///< the last bin counts everything staler

  void add(int64_t staleness) noexcept;
  /// For sums over ranks.
  std::array<int64_t, kBins>& bins() noexcept { return bins_; }

  int64_t total() const noexcept;
  double mean() const noexcept;  ///< 0 without gradients
  /// The bins up to the last that is not empty.
  std::vector<int64_t> used() const;
  /// "0: 412  1: 380  2: 9": the bins that are not empty; "64+" is the last.
  std::string to_string() const;
  StalenessCounts& operator+=(const StalenessCounts& other) noexcept;

 private:
  std::array<int64_t, kBins> bins_{};
};

}  // namespace caravan

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "caravan/data/tasks/task_rows.h"

namespace caravan {

/// A source of samples, and its share of them.
struct WeighedSource {
  double weight = 1;   ///< relative to the others'
  std::string name{};  ///< for errors
};

/// The seed of the order in which the source at an index is visited, so that sources of equal length have different
/// ones.
inline uint64_t seed_of_source(uint64_t seed, size_t source) { return seed + 0x9E3779B97F4A7C15 * source; }

/// The source of each sample of a run. Sources take turns by their weights in a fixed period, so that any range of
/// samples has close to its share of each.
class SourceTurns {
 public:
  /// Weights are rounded to ten-thousandths of their sum; they are exact if they are small whole numbers, or tenths,
  /// hundredths or thousandths of such. Throws DataError naming a source whose weight is less than a ten-thousandth of
  /// the sum or not above 0.
  explicit SourceTurns(const std::vector<WeighedSource>& sources);

  TaskRows::Draw draw(int64_t sample) const;
  /// The number of samples of each source before `sample`.
  std::vector<int64_t> drawn(int64_t sample) const;

 private:
  std::vector<int64_t> quotas_;   ///< samples of each source in a period
  std::vector<size_t> turns_;     ///< source of each turn in a period
  std::vector<int64_t> earlier_;  ///< earlier turns of the same source in the period
};

}  // namespace caravan

#pragma once

#include <cstdint>
#include <vector>

#include "caravan/schedule/row_deal.h"

namespace caravan {

/// Decides when the rows of a step are dealt anew, from the times that ranks compute. A pure function of what it has
/// been told, so that ranks which tell theirs the same decide the same.
class Balancer {
 public:
  /// A deal that would end the step less than this fraction earlier is not worth a change: noise would change it again.
  static constexpr double kLeastGain = 0.03;

  /// `rows`: the present deal.
  Balancer(const RowsToDeal& what, std::vector<int64_t> rows);

  const std::vector<int64_t>& rows() const noexcept { return rows_; }

  /// `busy_ms`: for how long each coordinate computed in a step with rows(): that of its slowest rank, without waiting.
  /// Returns whether rows() changed. Time that does not depend on the rows is taken for time that does, so the next
  /// measurements correct the deal.
  bool measure(const std::vector<double>& busy_ms);

 private:
  RowsToDeal what_;
  std::vector<int64_t> rows_;
  std::vector<double> ms_per_row_{};  ///< smoothed
};

}  // namespace caravan

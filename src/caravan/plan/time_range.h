#pragma once

#include <string>

#include "caravan/cost/hardware.h"

namespace caravan {

/// Where a predicted time is expected, nine times in ten.
struct TimeRange {
  double low = 0, high = 0;
  std::string to_text() const;  ///< "7.38 to 9.39 s"
};

/// Share by which measured steps on the first `num_ranks` devices differ from predictions: that of the least known one.
double time_error_of(const Hardware& hardware, int num_ranks);

/// `error`: |predicted / measured - 1|.
TimeRange time_range(double predicted, double error);

}  // namespace caravan

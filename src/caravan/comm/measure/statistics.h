#pragma once

#include <vector>

namespace caravan::measure {

/// The quantile `share` (0 to 1) of the values, with linear interpolation; 0 if there are none.
double quantile(std::vector<double> values, double share);

}  // namespace caravan::measure

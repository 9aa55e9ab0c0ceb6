#pragma once

#include <vector>

namespace caravan::measure {

/// The value below which `share` (0 to 1) of the values lie, between two of them by linear interpolation; 0 for none.
double quantile(std::vector<double> values, double share);

}  // namespace caravan::measure

#pragma once

#include <cstddef>
#include <vector>

#include "caravan/plan/search.h"

namespace caravan {

/// Removes rows that differ from an earlier one in minor keys alone, and whose step takes as long within a hundredth:
/// degrees, schedule and technique are equal, and both recompute and offload something or neither. Returns how many.
size_t drop_twins(std::vector<PlannedLayout>& rows, int num_ranks);

}  // namespace caravan

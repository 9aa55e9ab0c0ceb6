#pragma once

#include <cstddef>
#include <vector>

#include "caravan/plan/search.h"

namespace caravan {

/// Removes rows that differ from an earlier one in minor keys alone: degrees, schedule and technique are equal. Those
/// that both recompute and offload something, or neither, if steps take as long within a hundredth; others if they are
/// slower and need as much memory. Returns how many.
size_t drop_twins(std::vector<PlannedLayout>& rows, int num_ranks);

}  // namespace caravan

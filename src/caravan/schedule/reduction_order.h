#pragma once

#include <cstddef>

#include "caravan/schedule/schedule.h"

namespace caravan {

/// Whether no other reduction of the same group comes between the reduction at `position` and the next update. Looks at
/// the entries up to the first of either: of a table with one reduction in each micro-batch, at those of one.
bool ends_reductions(const Schedule& table, size_t position);

}  // namespace caravan

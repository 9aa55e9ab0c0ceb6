#pragma once

#include <cstddef>

#include "caravan/schedule/schedule.h"

namespace caravan {

/// Whether no other reduction of the same group comes between the reduction at `position` and the next update. Reads
/// the entries up to the first of either: in a table with a reduction in each micro-batch, those of one micro-batch.
bool ends_reductions(const Schedule& table, size_t position);

}  // namespace caravan

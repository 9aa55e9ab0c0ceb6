#pragma once

#include <span>

#include "caravan/comm/algorithms/problem.h"
#include "caravan/comm/algorithms/schedule.h"

namespace caravan::algorithms {

/// Takes all ranks through their schedules with names in place of numbers. Throws InternalError naming step, rank and
/// elements if
///   - a message has no counterpart of the same range (but for all_to_all: count) in the same step, or the ranks have
///     different numbers of steps;
///   - a step reads what is not there yet, or what it overwrites, or sums what it sums twice;
///   - an unfinished sum travels, or is added to in several steps, after the partial steps (it would be rounded more
///     than once);
///   - a rank ends without every contribution to its result exactly once.
/// Costs ranks x elements x contributions: for tests, with short vectors.
void validate(std::span<const Problem> problems, std::span<const Schedule> schedules);

}  // namespace caravan::algorithms

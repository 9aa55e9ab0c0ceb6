#pragma once

#include <span>

#include "caravan/comm/algorithms/message_plan.h"
#include "caravan/comm/algorithms/problem.h"

namespace caravan::algorithms {

/// Runs the plans of all ranks on symbols instead of numbers. Throws InternalError naming step, rank and elements if
///   - a message has no counterpart of the same range (for all_to_all: of the same count) in the same step, or the
///     ranks have different numbers of steps;
///   - a step reads elements that are not there yet or that it overwrites, or adds a contribution twice;
///   - a partial sum is sent, or is added to in several steps, after the partial steps (it would be rounded more than
///     once);
///   - the result of a rank does not have every contribution exactly once.
/// Costs ranks x elements x contributions, so use short vectors.
void validate(std::span<const Problem> problems, std::span<const MessagePlan> plans);

}  // namespace caravan::algorithms

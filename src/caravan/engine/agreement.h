#pragma once

#include "caravan/engine/strategy.h"
#include "caravan/schedule/schedule.h"

namespace caravan {

/// The table of strategy.passes for this rank, checked against those of the other stages. Throws UsageError as check(),
/// and on every rank if two ranks have different tables. Every rank of `mesh` calls it.
Schedule agreed_table(const Strategy& strategy, const Units& units, int num_micro_batches, const Mesh& mesh);

/// The table of a step whose events were recorded: gathers by Strategy::gathers, reductions as soon as gradients are
/// complete. Throws UsageError on every rank if two ranks recorded different events or announced different numbers of
/// micro-batches. Every rank of `mesh` calls it.
Schedule agreed_recording(const Schedule& events, int num_micro_batches, const Units& units, const Strategy& strategy,
                          const Mesh& mesh);

}  // namespace caravan

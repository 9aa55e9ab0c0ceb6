#pragma once

#include <cstdint>

#include "caravan/memory/chunks/chunk_moves.h"

namespace caravan {

struct ChunkOptimum {
  int64_t lower_bytes = 0;  ///< no plan moves less
  ChunkPlan plan{};         ///< the best that was found
  int num_nodes = 0;        ///< of the search
  bool is_exact() const noexcept { return plan.moved_bytes() <= lower_bytes; }
};

/// The least that a trace can move, with write-backs. The problem is NP-hard (Farach-Colton and Liberatore, On Local
/// Register Allocation, 2000), so it is a search. Without write-backs it is a flow. A node of the search shares the
/// write-back of each version among the gaps that would cause it (Lagrange multipliers), which bounds it from below,
/// and branches on gaps that the flow keeps in part and on versions whose write-back it pays in part. With `most_nodes`
/// 1 it is a bound and a good plan. Throws UsageError for an invalid trace.
ChunkOptimum optimal_moves(const ChunkTrace& trace, int most_nodes = 20000);

/// What a trace moves under each policy, beside the least that it could: a line of `inspect`. Three repetitions, so
/// that what happens once (the first fetches, the last write-backs) weighs little; bytes of one of them.
struct ChunkBytes {
  int64_t recorded = 0;
  int64_t latest = 0;
  int64_t lru = 0;
  int64_t least = 0;      ///< no plan moves less
  bool is_least = false;  ///< whether a plan moves just that
};
ChunkBytes compare_policies(const ChunkTrace& step, int most_nodes = 1);

/// How many parameter chunks have their optimizer states on the device, and so are updated there, such that a step
/// moves least: at most states_in_margin (PatrickStar's placement of operators by device). Bytes are those of a step
/// that follows others.
int choose_states_on_device(ChunkStep step, const StepBudget& budget);

}  // namespace caravan

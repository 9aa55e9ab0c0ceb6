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

}  // namespace caravan

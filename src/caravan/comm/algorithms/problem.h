#pragma once

#include <cstdint>
#include <vector>

#include "caravan/comm/algorithms/algorithm.h"
#include "caravan/comm/algorithms/schedule.h"
#include "caravan/comm/work.h"

namespace caravan::algorithms {

/// What one rank knows of a collective: all that its schedule depends on. Counts are elements.
struct Problem {
  Verb verb = Verb::all_reduce;
  int rank = 0;
  int size = 1;
  int root = 0;                        ///< broadcast, reduce
  int64_t count = 0;                   ///< all_reduce, broadcast, reduce
  std::vector<int64_t> parts{};        ///< all_gather, reduce_scatter: each rank's
  std::vector<int64_t> send_counts{};  ///< all_to_all: to each rank
  std::vector<int64_t> recv_counts{};  ///< all_to_all: from each rank
};

Problem problem_of(const Operation& operation, int rank, int size);

/// Where the input lies in the working buffer, and what becomes the result; empty where the rank has none.
struct Frame {
  Range input;
  Range result;
};
Frame frame_of(const Problem& problem);

/// The column of this rank. `segment`: elements that travel at a time, of chain. Throws UsageError naming the valid
/// algorithms if this one does not serve the verb, or if chain has no segment.
Schedule make_schedule(Algorithm algorithm, const Problem& problem, int64_t segment = 0);

/// Bytes of the whole vector, by which a SelectionTable chooses.
int64_t whole_bytes(const Operation& operation);

}  // namespace caravan::algorithms

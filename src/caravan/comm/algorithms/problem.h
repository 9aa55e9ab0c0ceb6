#pragma once

#include <cstdint>
#include <vector>

#include "caravan/comm/algorithms/message_plan.h"
#include "caravan/comm/choice/selection.h"
#include "caravan/comm/work.h"

namespace caravan::algorithms {

/// What one rank knows about a collective: everything that its plan depends on. Counts are elements.
struct Problem {
  Verb verb = Verb::all_reduce;
  int rank = 0;
  int size = 1;
  int root = 0;                        ///< broadcast, reduce
  int64_t count = 0;                   ///< all_reduce, broadcast, reduce
  std::vector<int64_t> parts{};        ///< all_gather, reduce_scatter: of each rank
  std::vector<int64_t> send_counts{};  ///< all_to_all: to each rank
  std::vector<int64_t> recv_counts{};  ///< all_to_all: from each rank
};

Problem problem_of(const Operation& operation, int rank, int size);

/// The range of the input in the working buffer, and the range that becomes the result; empty if the rank has none.
struct Frame {
  Range input;
  Range result;
};
Frame frame_of(const Problem& problem);

/// The plan of this rank. `segment`: the elements of one message of chain. Throws UsageError if the algorithm does not
/// serve the verb, naming those that do, or if chain has no segment.
MessagePlan make_plan(Algorithm algorithm, const Problem& problem, int64_t segment = 0);

/// The same for a checked operation.
MessagePlan make_plan(const Choice& choice, const Operation& operation, int rank, int size);

/// Bytes of the whole vector, by which a SelectionTable chooses.
int64_t whole_bytes(const Operation& operation);

}  // namespace caravan::algorithms

#pragma once

#include <vector>

#include "caravan/schedule/pipeline_schedule.h"

namespace caravan {

/// What the passes of one stage cost, in any unit of time.
struct StageCost {
  double forward = 1;
  double backward = 1;  ///< of its input
  double weight = 1;    ///< gradients of its weights
  double recompute = 1;
  double send = 0;  ///< what one crossing to or from the next stage takes, while both ranks compute
};

/// A pass, from when to when.
struct PassSpan {
  Pass pass;
  double begin = 0;
  double end = 0;
};

/// A step as its schedule has it.
struct Timeline {
  struct Rank {
    std::vector<PassSpan> spans{};  ///< in order
    double busy = 0;                ///< the sum of them
    int64_t num_sent = 0;           ///< messages to other ranks: inputs of stages, and their gradients
    /// How long it waits between its first pass and its last.
    double idle_inside() const { return spans.empty() ? 0 : spans.back().end - spans.front().begin - busy; }
  };
  std::vector<Rank> ranks{};
  double total = 0;  ///< from the first pass to the end of the last

  /// The part of the step in which a rank waits, and the mean of all ranks.
  double bubble(size_t rank) const { return 1 - ranks[rank].busy / total; }
  double bubble() const;
};

/// Runs a schedule on paper: a pass begins when the one before it on its rank, and what it needs, are there. The
/// backward of a stage whose order has no W computes the gradients of its weights too. Updates take no time. `stages`:
/// by stage. Throws UsageError for an order that waits for ever.
Timeline simulate(const PipelineOrder& order, const std::vector<StageCost>& stages);

}  // namespace caravan

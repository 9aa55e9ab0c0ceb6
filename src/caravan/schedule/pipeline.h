#pragma once

#include <vector>

#include "caravan/schedule/pipeline_schedule.h"

namespace caravan {

/// The cost of the passes of one stage, in any unit of time.
struct StageCost {
  double forward = 1;
  double backward = 1;  ///< of the input gradients
  double weight = 1;    ///< of the weight gradients
  double recompute = 1;
  double send = 0;  ///< of a transfer to or from the next stage, during which both ranks compute
};

/// The time span of a pass.
struct PassSpan {
  Pass pass;
  double begin = 0;
  double end = 0;
};

/// The timeline of a step under a schedule.
struct Timeline {
  struct Rank {
    std::vector<PassSpan> spans{};  ///< in order
    double busy = 0;                ///< their total time
    int64_t num_sent = 0;           ///< messages to other ranks: inputs of stages, and their gradients
    /// Idle time between its first pass and its last.
    double idle_inside() const { return spans.empty() ? 0 : spans.back().end - spans.front().begin - busy; }
  };
  std::vector<Rank> ranks{};
  double total = 0;  ///< from the first pass to the end of the last

  /// The fraction of the step in which a rank waits, and its mean over all ranks.
  double bubble(size_t rank) const { return 1 - ranks[rank].busy / total; }
  double bubble() const;
};

/// Simulates a schedule: a pass begins when the previous pass of its rank and its inputs are done. The backward of a
/// stage whose order has no W includes the weight gradients. Updates take no time. `stages`: by stage. Throws
/// UsageError for an order that deadlocks.
Timeline simulate(const PipelineOrder& order, const std::vector<StageCost>& stages);

}  // namespace caravan

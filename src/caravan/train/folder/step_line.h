#pragma once

#include <cstdint>

#include "caravan/step/stepper.h"
#include "caravan/train/folder/metrics.h"
#include "caravan/train/folder/run_state.h"
#include "caravan/train/model/micro_batch.h"

namespace caravan {

/// What a step has cost this rank; of several steps between two boundaries the mean.
struct StepSpending {
  double step_ms = 0;
  double comm_ms = 0;
  int64_t bytes_sent = 0;
};

/// The log line of the step that `state` has just done, without what comes after it: evaluation, saves and experts.
StepMetrics step_line(const StepReport& report, const StepSpending& costs, RunState& state, const MemoryPlan& memory,
                      const RowShape& rows);

}  // namespace caravan

#pragma once

#include <vector>

#include "caravan/plan/memory.h"
#include "caravan/plan/pipeline.h"
#include "caravan/train/recipe.h"

namespace caravan::app {

/// The pipeline of a recipe on paper, from one time that it is empty to the next: a step, or the steps of a window
/// (pipeline.drain), where stages do not wait for each other.
struct PlannedSchedule {
  std::vector<MemoryShape> ranks;  ///< of the pipeline
  std::vector<StageCost> costs;    ///< FLOPs, by stage
  PipelineOrder order;
  Timeline timeline;
  int micro_batches = 1;  ///< of a step
  int steps = 1;
};

/// Of `recipe`, with the vocabulary of its model, on `num_ranks` ranks. Throws UsageError as plan_memory.
PlannedSchedule plan_schedule(const Recipe& recipe, int num_ranks);

}  // namespace caravan::app

#pragma once

#include <vector>

#include "caravan/recipe/recipe.h"
#include "caravan/schedule/pipeline.h"

namespace caravan::app {

/// The simulated pipeline of a recipe, from one time that it is empty to the next: a step, or the steps of a window
/// (pipeline.drain) if stages do not wait for each other.
struct PlannedSchedule {
  std::vector<int> stage_of_unit;  ///< of embedding, layers and head
  std::vector<StageCost> costs;    ///< FLOPs, by stage
  PipelineOrder order;
  Timeline timeline;
  BatchPlan batch;
  int steps = 1;
};

/// Simulates `recipe`, with the vocabulary of its model, on `num_ranks` ranks. Throws UsageError as plan_batch.
PlannedSchedule plan_schedule(const Recipe& recipe, int num_ranks);

}  // namespace caravan::app

#include "apps/caravan/inspect/planned_schedule.h"

#include <algorithm>

#include "caravan/registry/registry.h"
#include "caravan/schedule/stages.h"

namespace caravan::app {
namespace {

/// The total cost of the units of each stage: forward, input gradients and weight gradients each a third.
std::vector<StageCost> costs_of(const std::vector<int>& stages, const std::vector<double>& unit_costs) {
  std::vector<StageCost> costs(static_cast<size_t>(stages.back()) + 1, {0, 0, 0, 0, 0});
  for (size_t unit = 0; unit < stages.size(); ++unit) {
    StageCost& cost = costs[static_cast<size_t>(stages[unit])];
    for (double* part : {&cost.forward, &cost.backward, &cost.weight, &cost.recompute}) *part += unit_costs[unit] / 3;
  }
  return costs;
}

}  // namespace

PlannedSchedule plan_schedule(const Recipe& recipe, int num_ranks) {
  PlannedSchedule plan;
  plan.batch = plan_batch(recipe, num_ranks);
  if (recipe.pipeline.has_windows()) {
    const int64_t end = std::max<int64_t>(recipe.train.steps, 1);
    plan.steps = static_cast<int>(std::min(recipe.pipeline.schedule.whole("drain"), next_due(recipe, 0, end)));
  }
  const std::vector<double> unit_costs = unit_flops(recipe.model);
  plan.stage_of_unit = stage_of_units(recipe.pipeline, recipe.model, unit_costs);
  plan.costs = costs_of(plan.stage_of_unit, unit_costs);
  plan.order = pipeline_order(recipe.pipeline, plan.steps * static_cast<int>(plan.batch.accumulation),
                              recipe.memory.recompute.entry().repeats_stages);
  plan.timeline = simulate(plan.order, plan.costs);
  return plan;
}

}  // namespace caravan::app

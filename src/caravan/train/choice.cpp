#include "caravan/train/choice.h"

#include "caravan/plan/stages.h"

namespace caravan {

StrategyChoice strategy_choice(const Recipe& recipe, const ModelConfig& model, int num_ranks,
                               const std::vector<double>& unit_costs) {
  StrategyChoice choice = strategy_choice(recipe.data_parallel, recipe.precision, recipe.memory.recompute);
  choice.tensor_parallel = recipe.tensor_parallel;
  choice.context_parallel = recipe.context_parallel;
  choice.expert_parallel = recipe.expert_parallel;
  choice.pipeline = recipe.pipeline;
  const BatchPlan plan = plan_batch(recipe, num_ranks);
  choice.sequences = plan.micro_batch;
  choice.pipeline.micro_batches = plan.accumulation;
  choice.overlap = recipe.comm.overlap;
  if (recipe.pipeline.is_used()) {
    choice.stage_of_block = stage_of_units(recipe.pipeline, model, unit_costs.empty() ? unit_flops(model) : unit_costs);
  }
  return choice;
}

}  // namespace caravan

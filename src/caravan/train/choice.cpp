#include "caravan/train/choice.h"

namespace caravan {

StrategyChoice strategy_choice(const Recipe& recipe, const ModelConfig& model, int num_ranks,
                               const UnitCosts& unit_costs) {
  StrategyChoice choice{.data_parallel = recipe.data_parallel,
                        .hook = recipe.hook,
                        .tiling = recipe.tiling,
                        .recompute = recipe.memory.recompute};
  set_dtypes(choice, recipe.precision);
  choice.tensor_parallel = recipe.tensor_parallel;
  choice.context_parallel = recipe.context_parallel;
  choice.expert_parallel = recipe.expert_parallel;
  choice.pipeline = recipe.pipeline;
  const BatchPlan plan = plan_batch(recipe, num_ranks);
  choice.sequences = plan.micro_batch * recipe.data.task.sequences();
  choice.has_equal_micro_batches = recipe.train.is_even();
  choice.pipeline.schedule.set("micro_batches", plan.accumulation);
  choice.overlap = recipe.comm.overlap;
  choice.keeps_frozen = recipe.memory.keeps_frozen;
  choice.offload = recipe.offload;
  choice.chunks = recipe.chunks;
  choice.waits_for_norm = recipe.optimizer.clip_norm > 0 || recipe.precision.scales_loss() ||
                          recipe.optimizer.skip_spikes > 0 ||
                          recipe.log.tensors > 0;  // which compares the weights before and after
  if (recipe.pipeline.is_used()) {
    const bool has_costs = !unit_costs.of_units.empty();
    choice.stage_of_block =
        stage_of_units(recipe.pipeline, model, has_costs ? unit_costs.of_units : unit_flops(model), unit_costs.speeds);
  }
  return choice;
}

}  // namespace caravan

#pragma once

#include "caravan/recipe/recipe.h"
#include "caravan/schedule/stages.h"
#include "caravan/techniques/make_strategy.h"

namespace caravan {

/// The recipe's choices of parallelism over `num_ranks` ranks, for `model` (the recipe's, with its vocabulary).
/// Pipeline stages are cut by `unit_costs` (measured_costs); without any, by FLOPs.
/// Throws UsageError as plan_batch, and for more stages than layers.
StrategyChoice strategy_choice(const Recipe& recipe, const ModelConfig& model, int num_ranks,
                               const UnitCosts& unit_costs = {});

}  // namespace caravan

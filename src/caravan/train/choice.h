#pragma once

#include <vector>

#include "caravan/recipe/recipe.h"
#include "caravan/techniques/make_strategy.h"

namespace caravan {

/// What a recipe says of parallelism over `num_ranks` ranks, for `model` (the recipe's, with its vocabulary). Stages of
/// a pipeline are cut by `unit_costs`, of embedding, layers and head (measured_costs); if that is empty, by their
/// FLOPs. Throws UsageError as plan_batch, and for more stages than layers.
StrategyChoice strategy_choice(const Recipe& recipe, const ModelConfig& model, int num_ranks,
                               const std::vector<double>& unit_costs = {});

}  // namespace caravan

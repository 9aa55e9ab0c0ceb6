#pragma once

#include <vector>

#include "caravan/recipe/recipe.h"
#include "caravan/techniques/make_strategy.h"

namespace caravan {

/// The recipe's choices of parallelism over `num_ranks` ranks, for `model` (the recipe's, with its vocabulary).
/// Pipeline stages are cut by `unit_costs`, of embedding, layers and head (measured_costs); if empty, by their FLOPs.
/// Throws UsageError as plan_batch, and for more stages than layers.
StrategyChoice strategy_choice(const Recipe& recipe, const ModelConfig& model, int num_ranks,
                               const std::vector<double>& unit_costs = {});

}  // namespace caravan

#pragma once

#include "caravan/techniques/make_strategy.h"

namespace caravan {

/// Splits the layers of the model as the choice says, over the axes ep, tp and cp of `mesh`, which it factors into
/// those of a grid, a ring, and groups that share heads; without a choice the model stays whole. Every rank calls it.
/// Throws as make_strategy.
Strategy split_model(const StrategyChoice& choice, Module& module, Mesh& mesh);

}  // namespace caravan

#pragma once

#include "caravan/techniques/make_strategy.h"

namespace caravan {

/// The model with its layers split as the choice says, over the axes ep, tp and cp of `mesh`, which it factors into
/// those of a grid, of a ring, of groups that share heads; whole if it says nothing. Every rank calls it. Throws as
/// make_strategy.
Strategy split_model(const StrategyChoice& choice, Module& module, Mesh& mesh);

}  // namespace caravan

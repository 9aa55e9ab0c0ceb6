#pragma once

#include "caravan/module/module.h"
#include "caravan/nn/config.h"
#include "caravan/recipe/recipe.h"

namespace caravan {

/// Gives the trained parameters of `model` the learning rates and decays of optimizer.groups. A tile belongs to the
/// group of the parameter that it is cut from. Call it before an engine takes the model. Throws UsageError for a
/// pattern that matches none of them, with the nearest names.
void set_update_rules(const Module& model, const Recipe& recipe);

/// Throws as set_update_rules for a model of this config, which has the vocabulary. Allocates nothing.
void check_groups(const Recipe& recipe, const ModelConfig& config);

}  // namespace caravan

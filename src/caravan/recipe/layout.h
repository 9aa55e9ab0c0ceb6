#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "caravan/recipe/recipe.h"
#include "caravan/registry/value.h"

namespace caravan {

// The layout of a recipe: how ranks share the work of a step, and what they keep or compute again. It decides speed and
// memory, not what is learned, if its techniques compute the gradient of one process.

/// Whether the key is of the layout: mesh.tp, data_parallel.technique, train.micro_batch ..
bool is_layout_key(std::string_view name);

/// Gives `to` the layout of `from`.
void copy_layout(const Recipe& from, Recipe& to);

/// The keys of the layout of a legal recipe that are not as in the default recipe, in the order of recipe_keys().
std::vector<std::pair<std::string, RecipeValue>> layout_keys(const Recipe& recipe);

}  // namespace caravan

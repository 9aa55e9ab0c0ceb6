#pragma once

#include <functional>
#include <string>
#include <vector>

#include "caravan/recipe/recipe.h"
#include "caravan/registry/key.h"

namespace caravan {

/// One key of a recipe: "train.steps". Recipes are read, checked and printed through the table of keys.
struct RecipeKey : KeyName {
  std::string help;
  std::function<RecipeValue(const Recipe&)> get;
  /// Sets the value. Returns what is wrong with it, or "".
  std::function<std::string(Recipe&, const RecipeValue&)> set;
  /// Why the key is not used in this recipe; "" if it is. Giving an unused key is an error.
  std::function<std::string(const Recipe&)> idle = [](const Recipe&) { return std::string(); };
};
const std::vector<RecipeKey>& recipe_keys();
/// The key of this name. Throws InternalError if there is none.
const RecipeKey& recipe_key(std::string_view name);

}  // namespace caravan

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "caravan/train/recipe.h"

namespace caravan {

/// One value of a recipe file.
struct TrainTokenizer {
  int64_t vocabulary;
  bool operator==(const TrainTokenizer&) const = default;
};
using RecipeValue = std::variant<bool, int64_t, double, std::string, std::vector<std::string>, std::vector<int64_t>,
                                 TrainTokenizer, std::vector<DataSource>>;

/// One key of a recipe. Recipes are read, checked and printed by the table of these.
struct RecipeKey {
  std::string name;  ///< "train.steps"
  std::string help;
  std::function<RecipeValue(const Recipe&)> get;
  /// Sets the value, or returns what is wrong with it.
  std::function<std::string(Recipe&, const RecipeValue&)> set;
  bool is_printed = true;  ///< false: only one value is valid
  /// Why the key is not used in this recipe; "" if it is. Giving an unused key is an error.
  std::function<std::string(const Recipe&)> idle = [](const Recipe&) { return std::string(); };
};
const std::vector<RecipeKey>& recipe_keys();

/// One value as TOML.
std::string to_toml(const RecipeValue& value);

}  // namespace caravan

#include <gtest/gtest.h>

#include "caravan/recipe/recipe_key.h"
#include "tests/data/support.h"
#include "tests/needs.h"

namespace caravan::default_recipe_test {
namespace {

/// The file documents the defaults: all of them, with the right values.
TEST(DefaultRecipe, FileMatchesTheDefaultsOfTheCode) {
  testing::needs_chosen_in(read_file("recipes/default.toml"));
  const Recipe file = load_recipe("recipes/default.toml", {});
  EXPECT_EQ(to_toml(file), to_toml(Recipe()));
  for (const RecipeKey& key : recipe_keys()) {
    const bool is_future = key.name.starts_with("mesh.") && key.name != "mesh.dp";
    if (is_future || !key.idle(file).empty()) continue;
    EXPECT_TRUE(file.locations.contains(key.name)) << key.name;
  }
}

}  // namespace
}  // namespace caravan::default_recipe_test

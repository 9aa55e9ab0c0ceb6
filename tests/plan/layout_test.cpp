// What is of the layout of a recipe, and what a search may change.
#include "caravan/recipe/layout.h"

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/plan/neighbours.h"
#include "caravan/recipe/recipe_key.h"

namespace caravan::testing::layout_test {
namespace {

const std::vector<std::string> kTransformer{"model.layers=8", "train.global_batch=64", "data.tokenizer=bytes"};

Recipe recipe_of(std::vector<std::string> keys) {
  keys.insert(keys.begin(), kTransformer.begin(), kTransformer.end());
  return load_recipe("", keys);
}

/// The keys that two recipes use with different values.
std::set<std::string> differences(const Recipe& a, const Recipe& b) {
  std::set<std::string> names;
  for (const RecipeKey& key : recipe_keys()) {
    if (key.idle(a).empty() && key.idle(b).empty() && key.get(a) != key.get(b)) names.insert(key.name);
  }
  return names;
}

const std::vector<std::vector<std::string>> kRecipes{
    {},
    {"mesh.tp=2", "train.micro_batch=4", "memory.recompute=full"},
    {"mesh.pp=2", "mesh.cp=2", "pipeline.schedule=interleaved", "pipeline.micro_batches=16"},
    {"data_parallel.technique=zero3", "offload.optimizer=host", "offload.device_budget=1.5G"},
    {"moe.experts=4", "mesh.ep=2"}};

/// Else a record of what was chosen would leave something out.
TEST(Layout, HasAllThatASearchChanges) {
  for (const auto& keys : kRecipes) {
    SCOPED_TRACE(::testing::PrintToString(keys));
    const Recipe recipe = legal_recipe(recipe_of(keys), 8);
    const std::vector<Neighbour> all = neighbours(recipe, 8, /*is_auto=*/false);
    EXPECT_GT(all.size(), 10U);
    for (const Neighbour& neighbour : all) {
      for (const std::string& name : differences(recipe, neighbour.recipe)) EXPECT_TRUE(is_layout_key(name)) << name;
      Recipe copy = recipe;
      copy_layout(neighbour.recipe, copy);
      EXPECT_EQ(to_toml(copy), to_toml(neighbour.recipe)) << neighbour.choice;
    }
  }
}

TEST(Layout, IsCopiedWithoutTheRest) {
  for (const auto& keys : kRecipes) {
    SCOPED_TRACE(::testing::PrintToString(keys));
    const Recipe recipe = recipe_of(keys);
    Recipe plain = recipe;
    copy_layout(Recipe(), plain);
    EXPECT_TRUE(layout_keys(plain).empty());
    std::set<std::string> names;
    for (const auto& [name, value] : layout_keys(recipe)) names.insert(name);
    std::set<std::string> given;
    for (const std::string& key : keys) {
      const std::string name = key.substr(0, key.find('='));
      if (is_layout_key(name)) given.insert(name);
    }
    EXPECT_EQ(names, given);
    for (const std::string& name : differences(recipe, plain)) EXPECT_TRUE(is_layout_key(name)) << name;
  }
}

TEST(Layout, IsNotWhatThereIsNorWhatIsLearned) {
  for (const char* name : {"offload.device_budget", "train.global_batch", "model.layers", "precision.compute",
                           "comm.backend", "data.text", "optimizer.kind"}) {
    EXPECT_FALSE(is_layout_key(name)) << name;
  }
  for (const char* name : {"offload.optimizer", "offload.delayed_update", "train.micro_batch", "mesh.dp",
                           "data_parallel.technique", "pipeline.schedule"}) {
    EXPECT_TRUE(is_layout_key(name)) << name;
  }
}

}  // namespace
}  // namespace caravan::testing::layout_test

#include "apps/caravan/neighbours.h"

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/registry/registry.h"
#include "caravan/train/recipe_key.h"

namespace caravan::app {
namespace {

using Overrides = std::vector<std::string>;

/// Each a change of one choice, legal or not.
std::vector<Overrides> changes_of(const Recipe& recipe, int num_ranks) {
  std::vector<Overrides> changes;
  const auto add = [&](const std::string& key, const auto& values) {
    for (const auto& value : values) changes.push_back({fmt::format("{}={}", key, value)});
  };
  const BatchPlan plan = plan_batch(recipe, num_ranks);
  using Numbers = std::vector<int64_t>;
  const auto add_entries = [&](std::string_view family, int64_t ranks) {
    for (const std::string& name : names_of(family)) {
      Setting setting(family, name);
      setting.entry().propose(setting, ranks);
      Overrides change{setting.full_name() + "=" + name};
      for (const SettingKey& key : setting.entry().keys) {
        if (setting.value(key.name) == key.initial) continue;
        change.push_back(setting.full_name(key.name) + "=" + to_toml(setting.value(key.name)));
      }
      changes.push_back(std::move(change));
    }
  };
  add_entries("data_parallel", plan.dp);
  for (const SettingKey& key : recipe.data_parallel.entry().keys) {
    for (const RecipeValue& choice : key.kind.choices) {
      changes.push_back({fmt::format("{}={}", recipe.data_parallel.full_name(key.name), to_toml(choice))});
    }
  }
  const auto add_degree = [&](const std::string& axis, int64_t degree) {
    for (const int64_t other : {degree * 2, degree / 2}) {
      const int64_t others = ranks_per_replica(recipe) / degree * other;
      if (other == 0 || others == 0 || num_ranks % others != 0) continue;
      changes.push_back({fmt::format("mesh.{}={}", axis, other), fmt::format("mesh.dp={}", num_ranks / others)});
    }
  };
  add_degree("tp", recipe.tensor_parallel.degree);
  add_degree("cp", recipe.context_parallel.degree);
  add_degree("pp", recipe.pipeline.degree);
  if (recipe.model.moe.is_used()) add_degree("ep", recipe.expert_parallel.degree);
  for (const Split* split : {&recipe.tensor_parallel, &recipe.context_parallel}) {
    if (split->is_used()) add_entries(split->kind.family().name, split->degree);
  }
  if (recipe.pipeline.is_used()) add_entries("pipeline", recipe.pipeline.degree);
  add_entries("recompute", 1);
  if (recipe.pipeline.is_used()) {
    add("pipeline.micro_batches", Numbers{plan.accumulation * 2, plan.accumulation / 2});
  } else {
    add("train.micro_batch", plan.micro_batch > 1 ? Numbers{plan.micro_batch * 2, plan.micro_batch / 2} : Numbers{2});
  }
  return changes;
}

/// The value that the key of an override has in a recipe.
std::string value_of(const Recipe& recipe, const std::string& change) {
  return to_toml(recipe_key(change.substr(0, change.find('='))).get(recipe));
}

/// The recipe on that many ranks, if it is legal.
std::optional<Recipe> legal(const InspectArguments& arguments, const Overrides& change, int64_t micro_batch,
                            int num_ranks) {
  Overrides all = arguments.overrides;
  all.insert(all.end(), change.begin(), change.end());
  try {
    Recipe recipe = load_recipe(arguments.recipe, all);
    mesh_axes(recipe, num_ranks);
    const int64_t rows = plan_batch(recipe, num_ranks).rows();
    const bool is_changed = change.front().starts_with("train.micro_batch=");
    if (!is_changed && !recipe.pipeline.is_used() && rows % micro_batch == 0) recipe.train.micro_batch = micro_batch;
    plan_batch(recipe, num_ranks);
    return recipe;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<Neighbour> neighbours(const InspectArguments& arguments, const Recipe& recipe, int num_ranks) {
  std::vector<Neighbour> found;
  for (const Overrides& change : changes_of(recipe, num_ranks)) {
    std::optional<Recipe> other = legal(arguments, change, plan_batch(recipe, num_ranks).micro_batch, num_ranks);
    if (!other || value_of(*other, change.front()) == value_of(recipe, change.front())) continue;
    other->model.vocabulary = recipe.model.vocabulary;
    found.push_back({join(change), std::move(*other)});
  }
  return found;
}

}  // namespace caravan::app

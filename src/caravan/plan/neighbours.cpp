#include "caravan/plan/neighbours.h"

#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/recipe/recipe_key.h"
#include "caravan/registry/registry.h"
#include "caravan/techniques/offload/kinds.h"

namespace caravan {
namespace {

struct Change {
  std::string key;
  RecipeValue value;
  std::string to_string() const {
    const auto* name = std::get_if<std::string>(&value);
    return fmt::format("{}={}", key, name != nullptr ? *name : to_toml(value));
  }
};
/// The changes of one choice, including keys that it needs.
using Changes = std::vector<Change>;

/// The keys of a technique on so many ranks, with other values; of numbers of ranks the nearest.
std::vector<std::pair<std::string, std::vector<RecipeValue>>> technique_keys(const Setting& technique, int64_t ranks) {
  std::vector<std::pair<std::string, std::vector<RecipeValue>>> all;
  for (const SettingKey& key : technique.entry().keys) {
    KeyValues values = values_of(technique, key, ranks);
    if (!values.ranks.empty()) {
      for (const int64_t other : nearest(values.ranks, technique.whole(key.name), 2))
        values.choices.emplace_back(other);
    }
    all.emplace_back(technique.full_name(key.name), std::move(values.choices));
  }
  return all;
}

/// All changes, legal or not.
std::vector<Changes> changes_of(const Recipe& recipe, int num_ranks) {
  std::vector<Changes> all;
  const auto add = [&](const std::string& key, const auto& values) {
    for (const auto& value : values) all.push_back({{key, value}});
  };
  const BatchPlan plan = plan_batch(recipe, num_ranks);
  using Numbers = std::vector<int64_t>;
  const auto add_entries = [&](std::string_view family, int64_t ranks) {
    for (const std::string& name : names_of(family)) {
      Setting setting(family, name);
      setting.entry().propose(setting, ranks);
      Changes changes{{setting.full_name(), name}};
      for (const SettingKey& key : setting.entry().keys) {
        if (setting.value(key.name) == key.initial) continue;
        changes.push_back({setting.full_name(key.name), setting.value(key.name)});
      }
      all.push_back(std::move(changes));
    }
  };
  add_entries("data_parallel", plan.dp);
  for (const auto& [key, values] : technique_keys(recipe.data_parallel, plan.dp)) add(key, values);
  const auto add_degree = [&](const std::string& axis, int64_t degree) {
    for (const int64_t other : {degree * 2, degree / 2}) {
      const int64_t others = ranks_per_replica(recipe) / degree * other;
      if (other == 0 || others == 0 || num_ranks % others != 0) continue;
      all.push_back({{"mesh." + axis, other}, {"mesh.dp", num_ranks / others}});
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
  for (const char* kind : kOffloadKinds) {
    const std::string key = recipe.offload.full_name(kind);
    const bool is_delayed = recipe.offload.flag("delayed_update");
    all.push_back({{key, std::string("host")}});
    all.push_back({{key, std::string("none")}});
    if (is_delayed) all.back().push_back({recipe.offload.full_name("delayed_update"), false});
  }
  if (recipe.tiling.reads("tiles") && recipe.tiling.whole("tiles") > 1) {
    const int64_t tiles = recipe.tiling.whole("tiles");
    add(recipe.tiling.full_name("tiles"), Numbers{tiles * 2, tiles / 2});
  }
  const bool is_pipeline = recipe.pipeline.is_used();
  const int64_t now = is_pipeline ? plan.accumulation : plan.micro_batch;
  for (const int64_t other : nearest(divisors(plan.rows()), now, 2)) {
    if (other != now) all.push_back({{is_pipeline ? "pipeline.micro_batches" : "train.micro_batch", other}});
  }
  return all;
}

/// The recipe with these changes, if that is different, and legal with the micro-batch of the recipe or its own.
std::optional<Recipe> changed(Recipe recipe, const Changes& changes, bool is_auto, int num_ranks) {
  const int64_t micro_batch = plan_batch(recipe, num_ranks).micro_batch;
  const RecipeValue before = recipe_key(changes.front().key).get(recipe);
  if (is_auto) recipe.train.micro_batch = kAutoMicroBatch;
  std::vector<std::pair<std::string, RecipeValue>> keys;
  for (const Change& change : changes) keys.emplace_back(change.key, change.value);
  std::optional<Recipe> other = changed_recipe(recipe, keys, num_ranks);
  if (!other || recipe_key(changes.front().key).get(*other) == before) return std::nullopt;
  const bool is_of_micro_batch = changes.front().key == "train.micro_batch";
  const bool fits = plan_batch(*other, num_ranks).rows() % micro_batch == 0;
  if (!fits || is_of_micro_batch || other->pipeline.is_used()) return other;
  other->train.micro_batch = micro_batch;
  return changed_recipe(*other, {}, num_ranks);
}

}  // namespace

Recipe legal_recipe(const Recipe& recipe, int num_ranks) {
  Recipe legal = parse_recipe(to_toml(recipe), "layout");
  if (legal.pipeline.file == recipe.pipeline.file) legal.pipeline.table = recipe.pipeline.table;
  legal.folder = recipe.folder;
  legal.name = recipe.name;
  mesh_axes(legal, num_ranks);
  plan_batch(legal, num_ranks);
  return legal;
}

std::optional<Recipe> changed_recipe(const Recipe& recipe, const std::vector<std::pair<std::string, RecipeValue>>& keys,
                                     int num_ranks) {
  try {
    Recipe other = recipe;
    for (const auto& [key, value] : keys) {
      if (!recipe_key(key).set(other, value).empty()) return std::nullopt;
    }
    return legal_recipe(other, num_ranks);
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool has_legal_degrees(const Recipe& recipe, int num_ranks) {
  using Key = std::pair<std::string, RecipeValue>;
  const auto is_legal = [&](int64_t pp, int64_t tp, int64_t cp, int64_t ep) {
    const int64_t replica = pp * tp * cp * ep;
    if (num_ranks % replica != 0) return false;
    std::vector<Key> keys{
        {"mesh.pp", pp}, {"mesh.tp", tp}, {"mesh.cp", cp}, {"mesh.ep", ep}, {"mesh.dp", num_ranks / replica}};
    if (changed_recipe(recipe, keys, num_ranks)) return true;
    keys.emplace_back("train.micro_batch", std::string("auto"));
    return changed_recipe(recipe, keys, num_ranks).has_value();
  };
  const std::set<std::pair<int64_t, int64_t>> others{{recipe.context_parallel.degree, recipe.expert_parallel.degree},
                                                     {1, 1}};
  for (const auto& [cp, ep] : others) {
    for (const int64_t pp : divisors(num_ranks)) {
      for (const int64_t tp : divisors(num_ranks / pp)) {
        if (is_legal(pp, tp, cp, ep)) return true;
      }
    }
  }
  return false;
}

KeyValues values_of(const Setting& setting, const SettingKey& key, int64_t ranks) {
  if (key.initial == RecipeValue("auto")) return {};  // already the best choice
  KeyValues values{key.kind.choices, {}};
  Setting proposed(setting.family().name, setting.name());
  proposed.entry().propose(proposed, ranks);
  const bool is_proposed = proposed.value(key.name) != key.initial;
  if (is_proposed && std::holds_alternative<int64_t>(key.initial)) values.ranks = divisors(ranks, 2, ranks - 1);
  return values;
}

bool is_exact(const Setting& setting) { return setting.has(Trait::whole_gradient) && setting.has(Trait::rehearses); }

std::vector<Neighbour> neighbours(const Recipe& recipe, int num_ranks, bool is_auto) {
  std::vector<Neighbour> found;
  for (const Changes& changes : changes_of(recipe, num_ranks)) {
    std::optional<Recipe> other = changed(recipe, changes, is_auto, num_ranks);
    if (!other) continue;
    std::vector<std::string> texts;
    for (const Change& change : changes) texts.push_back(change.to_string());
    found.push_back({join(texts), std::move(*other)});
  }
  return found;
}

}  // namespace caravan

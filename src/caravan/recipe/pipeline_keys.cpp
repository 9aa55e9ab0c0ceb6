#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/recipe/key_kinds.h"

namespace caravan {
namespace {

/// A word that looks like a path is one: load_recipe reads the file.
void take_paths(RecipeKey& key) {
  key.help += ", or a file with a custom table";
  key.get = [](const Recipe& recipe) -> RecipeValue { return recipe.pipeline.name(); };
  key.set = [](Recipe& recipe, const RecipeValue& value) -> std::string {
    const auto* name = std::get_if<std::string>(&value);
    if (name == nullptr) return is_not(value, "a string");
    const std::vector<std::string> all = names_of("pipeline");
    const bool is_path = name->find_first_of("./") != std::string::npos;
    if (!is_path && std::ranges::find(all, *name) == all.end()) {
      return fmt::format("'{}' is not one of {}, nor a file such as \"table.txt\"; the nearest is '{}'", *name,
                         join(all), nearest(*name, all));
    }
    recipe.pipeline.schedule.choose(is_path ? all.front() : *name);
    recipe.pipeline.file = is_path ? *name : "";
    return "";
  };
}

}  // namespace

std::vector<RecipeKey> pipeline_keys() {
  std::vector<RecipeKey> keys = family_keys(
      "pipeline", [](Recipe & recipe) -> auto& { return recipe.pipeline.schedule; });
  take_paths(keys.front());
  return on_axis(std::move(keys), "pp", [](const Recipe& recipe) { return recipe.pipeline.is_used(); });
}

}  // namespace caravan

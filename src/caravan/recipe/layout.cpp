#include "caravan/recipe/layout.h"

#include <algorithm>
#include <array>

#include "caravan/recipe/recipe_key.h"
#include "caravan/techniques/offload/kinds.h"

namespace caravan {
namespace {

constexpr std::array<std::string_view, 8> kLayoutSections{
    "mesh.",     "data_parallel.", "tensor_parallel.", "context_parallel.", "expert_parallel.",
    "pipeline.", "tiling.",        "memory."};
constexpr const char* kDelayed = "delayed_update";

}  // namespace

bool is_layout_key(std::string_view name) {
  constexpr std::string_view kOffload = "offload.";
  if (name.starts_with(kOffload)) {  // its folders, budget and so on are what there is
    name.remove_prefix(kOffload.size());
    return name == kDelayed || std::ranges::find(kOffloadKinds, name) != std::end(kOffloadKinds);
  }
  return name == "train.micro_batch" ||
         std::ranges::any_of(kLayoutSections, [&](std::string_view section) { return name.starts_with(section); });
}

void copy_layout(const Recipe& from, Recipe& to) {
  to.train.micro_batch = from.train.micro_batch;
  to.mesh = from.mesh;
  to.data_parallel = from.data_parallel;
  to.hook = from.hook;
  to.tensor_parallel = from.tensor_parallel;
  to.context_parallel = from.context_parallel;
  to.expert_parallel = from.expert_parallel;
  to.pipeline = from.pipeline;
  to.tiling = from.tiling;
  to.memory = from.memory;
  for (const char* kind : kOffloadKinds) to.offload.set(kind, from.offload.value(kind));
  to.offload.set(kDelayed, from.offload.value(kDelayed));
}

std::vector<std::pair<std::string, RecipeValue>> layout_keys(const Recipe& recipe) {
  Recipe plain = recipe;
  copy_layout(Recipe(), plain);
  std::vector<std::pair<std::string, RecipeValue>> keys;
  for (const RecipeKey& key : recipe_keys()) {
    if (!is_layout_key(key.name) || !key.idle(recipe).empty()) continue;
    RecipeValue value = key.get(recipe);
    if (value != key.get(plain)) keys.emplace_back(key.name, std::move(value));
  }
  return keys;
}

}  // namespace caravan

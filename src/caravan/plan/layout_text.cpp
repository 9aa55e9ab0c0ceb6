#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/plan/search.h"
#include "caravan/registry/changed_keys.h"
#include "caravan/techniques/offload/kinds.h"

namespace caravan {
namespace {

/// "shard 2", "sequence true": what is not as it is at first.
std::vector<std::string> given_keys(const Setting& setting) {
  std::vector<std::string> all;
  for (const auto& [key, value] : changed_keys(setting)) {
    const auto* names = std::get_if<std::vector<std::string>>(&value);
    const bool is_long = names != nullptr && names->size() > 2;
    all.push_back(is_long ? fmt::format("of {} {}", names->size(), key) : fmt::format("{} {}", key, to_toml(value)));
  }
  return all;
}

}  // namespace

std::string layout_text(const Recipe& recipe, int num_ranks) {
  const BatchPlan plan = plan_batch(recipe, num_ranks);
  std::vector<std::string> parts;
  const std::string split = split_text(recipe, plan.dp);
  std::string technique = recipe.data_parallel.name();
  for (const std::string& key : given_keys(recipe.data_parallel)) technique += " " + key;
  parts.push_back(split.empty() ? fmt::format("dp {}", plan.dp) : split);
  if (plan.dp > 1) parts.push_back(technique);
  if (!recipe.memory.recompute.is_none()) {
    std::string text = "recompute " + recipe.memory.recompute.name();
    for (const std::string& key : given_keys(recipe.memory.recompute)) text += " " + key;
    parts.push_back(text);
  }
  for (const char* kind : kOffloadKinds) {
    if (recipe.offload.text(kind) != "none") parts.push_back(fmt::format("{} on {}", kind, recipe.offload.text(kind)));
  }
  for (const Split* kind : {&recipe.tensor_parallel, &recipe.context_parallel, &recipe.expert_parallel}) {
    if (!kind->is_used()) continue;
    for (std::string& key : given_keys(kind->kind)) parts.push_back(std::move(key));
  }
  if (recipe.tiling.reads("tiles") && recipe.tiling.whole("tiles") > 1) {
    parts.push_back(fmt::format("{} tiles", recipe.tiling.whole("tiles")));
  }
  if (recipe.pipeline.is_used() && recipe.pipeline.chunks() > 1) {
    parts.push_back(fmt::format("{} stages a rank", recipe.pipeline.chunks()));
  }
  if (const std::vector<int64_t> layers = recipe.pipeline.layers(); recipe.pipeline.is_used() && !layers.empty()) {
    parts.push_back("layers " + join(layers, "+"));
  }
  parts.push_back(fmt::format("{} x {} sequences", plan.accumulation, plan.micro_batch));
  return join(parts);
}

}  // namespace caravan

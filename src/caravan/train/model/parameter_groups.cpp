#include "caravan/train/model/parameter_groups.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/pattern.h"
#include "caravan/models/model.h"

namespace caravan {
namespace {

/// As lora.targets: a pattern also matches the end of a name, from a dot on.
bool names_parameter(const std::string& pattern, const std::string& name) {
  return matches_pattern(pattern, name) || matches_pattern("*." + pattern, name);
}

bool has_parameter(const ParameterGroup& group, const std::string& name) {
  return std::ranges::any_of(group.parameters, [&](const auto& pattern) { return names_parameter(pattern, name); });
}

[[noreturn]] void refuse_pattern(const Recipe& recipe, const std::string& pattern,
                                 const std::vector<std::string>& names) {
  std::vector<std::string> ends;  // "weight" of "blocks.0.mlp.up.weight" is near to anything: whole names, and modules
  for (const std::string& name : names) {
    ends.push_back(name);
    ends.push_back(name.substr(0, name.rfind('.')) + ".*");
  }
  recipe.refuse(
      "optimizer.groups", fmt::format("'{}' matches no trained parameter", pattern),
      fmt::format("the nearest is '{}'; `inspect --layouts` lists the names of all", nearest_pattern(pattern, ends)));
}

}  // namespace

void set_update_rules(const Module& model, const Recipe& recipe) {
  const std::vector<ParameterGroup>& groups = recipe.optimizer.groups;
  if (groups.empty()) return;
  std::vector<Parameter*> trained;
  std::vector<std::string> names;
  for (Parameter* parameter : model.parameters()) {
    if (!parameter->requires_grad()) continue;
    trained.push_back(parameter);
    names.push_back(parameter->whole_name());
  }
  for (const ParameterGroup& group : groups) {
    for (const std::string& pattern : group.parameters) {
      const auto matches = [&](const std::string& name) { return names_parameter(pattern, name); };
      if (std::ranges::none_of(names, matches)) refuse_pattern(recipe, pattern, names);
    }
  }
  for (Parameter* parameter : trained) {
    const auto of_it = [&](const ParameterGroup& group) { return has_parameter(group, parameter->whole_name()); };
    const auto group = std::ranges::find_if(groups, of_it);
    if (group == groups.end()) continue;
    parameter->set_update_rule({.lr_factor = group->lr_factor, .weight_decay = group->weight_decay});
  }
}

void check_groups(const Recipe& recipe, const ModelConfig& config) {
  if (!recipe.optimizer.groups.empty()) set_update_rules(*make_model(config), recipe);
}

}  // namespace caravan

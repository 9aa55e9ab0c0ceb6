#pragma once

#include <string>
#include <utility>
#include <vector>

#include "caravan/registry/setting.h"

namespace caravan::testing {

using Values = std::vector<std::pair<std::string, RecipeValue>>;

/// A data-parallel technique: technique_of("zero3", {{"share", "off"}}).
inline Setting technique_of(const std::string& name, const Values& values = {}) {
  return Setting("data_parallel", name, values);
}

inline Setting hook_of(const std::string& name, const Values& values = {}) { return Setting("hook", name, values); }

/// The same setting with other values, also of keys that it does not read.
inline Setting with(Setting setting, const Values& values) {
  for (const auto& [key, value] : values) setting.set(key, value);
  return setting;
}

}  // namespace caravan::testing

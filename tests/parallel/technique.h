#pragma once

#include <string>
#include <utility>
#include <vector>

#include "caravan/registry/split.h"

namespace caravan::testing {

using Values = std::vector<std::pair<std::string, RecipeValue>>;

/// A data-parallel technique: technique_of("zero3", {{"share", "off"}}).
inline Setting technique_of(const std::string& name, const Values& values = {}) {
  return Setting("data_parallel", name, values);
}

inline Setting hook_of(const std::string& name, const Values& values = {}) { return Setting("hook", name, values); }

/// Sequences split over `degree` ranks.
inline Split context_of(const std::string& kind, int64_t degree, const Values& values = {}) {
  return {Setting("context_parallel", kind, values), degree};
}

/// Layers split over `degree` ranks, and experts.
inline Split tensor_of(int64_t degree, const std::string& kind = "1d", const Values& values = {}) {
  return {Setting("tensor_parallel", kind, values), degree};
}
inline Split experts_of(int64_t degree) { return {Setting("expert_parallel"), degree}; }

/// The same setting with other values, also of keys that it does not read.
inline Setting with(Setting setting, const Values& values) {
  for (const auto& [key, value] : values) setting.set(key, value);
  return setting;
}

}  // namespace caravan::testing

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "caravan/registry/registry.h"

namespace caravan {

/// The keys that the entry of the setting reads and that do not have their initial values.
inline std::vector<std::pair<std::string, RecipeValue>> changed_keys(const Setting& setting) {
  std::vector<std::pair<std::string, RecipeValue>> changed;
  for (const SettingKey& key : setting.entry().keys) {
    const RecipeValue& value = setting.value(key.name);
    if (value != key.initial) changed.emplace_back(key.name, value);
  }
  return changed;
}

}  // namespace caravan

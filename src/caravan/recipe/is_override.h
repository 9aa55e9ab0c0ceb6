#pragma once

#include <string>

#include "caravan/recipe/recipe.h"

namespace caravan {

/// Whether the value of `key` is from an override (--set), and not from the file or a default.
inline bool is_override(const Recipe& recipe, const std::string& key) { return recipe.where(key).starts_with("--set"); }

}  // namespace caravan

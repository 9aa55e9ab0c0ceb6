#pragma once

#include <optional>
#include <string>

#include <toml++/toml.h>

#include "caravan/registry/value.h"

namespace caravan {

/// The value of a TOML node. Nothing if no key takes such a value; `wrong` then says why.
std::optional<RecipeValue> read_value(const toml::node& node, std::string& wrong);

}  // namespace caravan

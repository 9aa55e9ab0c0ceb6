#pragma once

#include <string>

#include "caravan/registry/registry.h"

namespace caravan {

/// The traits of a hook with a residual on every rank: 4 bytes a parameter. `sends`: "fp32 factors".
Traits traits_of_residuals(const std::string& name, const std::string& sends);

}  // namespace caravan

#pragma once

#include <string>

#include "caravan/registry/registry.h"

namespace caravan {

/// The traits of a hook that keeps on every rank, for the next step, what it has left out: 4 bytes a parameter.
/// `sends`: "fp32 factors".
Traits traits_of_residuals(const std::string& name, const std::string& sends);

}  // namespace caravan

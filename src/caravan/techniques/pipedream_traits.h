#pragma once

#include <string>

#include "caravan/registry/traits.h"

namespace caravan {

/// The traits of schedules whose stages update their weights on their own, between micro-batches.
Traits traits_of_pipedream(const std::string& name);

}  // namespace caravan

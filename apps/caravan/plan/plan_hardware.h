#pragma once

#include "apps/caravan/options/options.h"
#include "caravan/cost/hardware.h"

namespace caravan::app {

/// A file, or a preset with the numbers of the command line. Throws what these throw, and UsageError for none of them.
Hardware hardware_of(const PlanArguments& arguments);

}  // namespace caravan::app

#pragma once

#include <string>
#include <vector>

#include "caravan/registry/registry.h"

namespace caravan {

// Of schedules whose stages update their weights on their own, between micro-batches, in windows of steps.

std::vector<SettingKey> keys_of_windows();
Traits traits_of_pipedream(const std::string& name);

}  // namespace caravan

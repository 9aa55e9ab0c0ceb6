#pragma once

#include <string>
#include <vector>

#include "caravan/registry/registry.h"

namespace caravan {

// Schedules whose stages update their weights independently, between micro-batches, in windows of steps.

std::vector<SettingKey> keys_of_windows();
Traits traits_of_pipedream(const std::string& name);

}  // namespace caravan

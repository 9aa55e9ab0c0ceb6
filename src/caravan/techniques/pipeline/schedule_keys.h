#pragma once

#include <vector>

#include "caravan/registry/registry.h"

namespace caravan {

/// Keys of the section pipeline that all schedules read.
std::vector<SettingKey> schedule_keys();

}  // namespace caravan

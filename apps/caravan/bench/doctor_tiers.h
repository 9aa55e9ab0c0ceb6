#pragma once

#include <string>
#include <vector>

#include "apps/caravan/bench/doctor_report.h"

namespace caravan::app {

/// Measures what offload needs of this host, and keeps it in tiers.toml beside what is known of other folders. Throws
/// for a folder of `disks` that cannot be measured; without any, the current one is, if it can be.
TierFindings measure_tiers(const std::vector<std::string>& disks);

}  // namespace caravan::app

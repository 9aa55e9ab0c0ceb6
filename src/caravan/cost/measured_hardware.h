#pragma once

#include <string>
#include <vector>

#include "caravan/comm/communicator.h"
#include "caravan/cost/hardware.h"
#include "caravan/cost/time_kernels.h"

namespace caravan {

/// What is measured, and for how long.
struct MeasureLimits {
  std::vector<std::string> dtypes{"fp32", "bf16"};  ///< of products and layers, at least one
  /// Fewer samples are taken, and shapes for which there is no time are left out; 0: as long as it takes.
  double seconds = 0;
};

struct MeasuredHardware {
  Hardware hardware{};  ///< without disks
  std::vector<MeasuredKernels> kernels{};
};

/// Measures this host as hardware of world.size() devices: each rank is one, with `threads` compute threads, and all
/// are measured at the same time. `date`: "2026-11-26". Called by every rank of `world`, all on one host; all get the
/// same figures. Takes a few seconds. A Runtime with these threads exists.
MeasuredHardware measure_hardware(Communicator& world, int threads, const std::string& date,
                                  const MeasureLimits& limits = {});

/// The link between the ranks of `world`, each of which sends to the next: its name is left open. Called by every rank;
/// all get the same figures.
LinkLevel measure_link(Communicator& world);

}  // namespace caravan

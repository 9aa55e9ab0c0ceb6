#pragma once

#include <memory>

#include "caravan/engine/flat/flat.h"

namespace caravan {

/// The memory beyond the device that this rank needs for an offloaded strategy. Throws as DiskStore, before anything is
/// written, if the disks are too small for its state.
std::shared_ptr<Tiers> make_tiers(const Strategy& strategy, const FlatLayout& layout, at::ScalarType dtype,
                                  at::Device device);

}  // namespace caravan

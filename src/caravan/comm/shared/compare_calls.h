#pragma once

#include <cstdint>

#include "caravan/comm/shared/task.h"

namespace caravan::shared {

/// Compares what all ranks called in `round`, where a call's first round is. Throws CommError naming both sides.
void compare_calls(const Seat& seat, const Descriptor& own, uint64_t round);

}  // namespace caravan::shared

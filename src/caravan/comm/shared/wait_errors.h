#pragma once

#include "caravan/comm/call_errors.h"
#include "caravan/comm/shared/task.h"

namespace caravan::shared {

/// `ranks` did not come within `timeout`; tells what they were last doing.
std::exception_ptr late_error(const Seat& seat, const Descriptor& call, std::span<const int> ranks,
                              std::chrono::milliseconds timeout);

}  // namespace caravan::shared

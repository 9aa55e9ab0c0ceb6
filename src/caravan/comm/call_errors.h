#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <span>
#include <string>

#include "caravan/comm/descriptor.h"
#include "caravan/comm/group_seat.h"

namespace caravan {

/// The errors of an operation that cannot end well. Each names `call`, its sequence number and its call site.

/// The ranks' calls do not fit: `fact` names both sides.
std::exception_ptr mismatch_error(const GroupSeat& seat, const Descriptor& call, std::string fact);

/// Another rank failed first, or is lost, as `fact` says.
std::exception_ptr peer_failure_error(const GroupSeat& seat, const Descriptor& call, std::string fact);

/// `ranks` have destroyed the communicator without coming to `call`.
std::exception_ptr left_error(const GroupSeat& seat, const Descriptor& call, std::span<const int> ranks);

/// `ranks` did not come within `timeout`; `last_call` says of a rank of the world what it was last doing, if given.
std::exception_ptr late_error(const GroupSeat& seat, const Descriptor& call, std::span<const int> ranks,
                              std::chrono::milliseconds timeout,
                              const std::function<std::string(int world_rank)>& last_call);

}  // namespace caravan

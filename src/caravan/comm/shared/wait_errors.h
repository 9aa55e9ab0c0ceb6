#pragma once

#include <chrono>
#include <exception>
#include <span>
#include <string>

#include "caravan/comm/shared/peer_watch.h"
#include "caravan/comm/shared/task.h"

namespace caravan::shared {

/// The errors of an operation that cannot end well. Each names `call`, its sequence number and its call site.

/// The ranks' calls do not fit: `fact` names both sides.
std::exception_ptr mismatch_error(const Seat& seat, const Descriptor& call, std::string fact);

/// Another rank failed first, as `text` says.
std::exception_ptr peer_failure_error(const Seat& seat, const Descriptor& call, std::string text);

/// `ranks` have destroyed the communicator without coming to `call`.
std::exception_ptr left_error(const Seat& seat, const Descriptor& call, std::span<const int> ranks);

/// `ranks` did not come within `timeout`; tells what they were last doing, and which of them `watch` (which may be
/// null) finds stopped.
std::exception_ptr late_error(const Seat& seat, const Descriptor& call, std::span<const int> ranks,
                              std::chrono::milliseconds timeout, PeerWatch* watch);

}  // namespace caravan::shared

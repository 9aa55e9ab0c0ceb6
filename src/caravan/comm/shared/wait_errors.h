#pragma once

#include "caravan/comm/call_errors.h"
#include "caravan/comm/shared/peer_watch.h"
#include "caravan/comm/shared/task.h"

namespace caravan::shared {

/// `ranks` did not come within `timeout`; tells what they were last doing, and which of them `watch` (which may be
/// null) finds stopped.
std::exception_ptr late_error(const Seat& seat, const Descriptor& call, std::span<const int> ranks,
                              std::chrono::milliseconds timeout, PeerWatch* watch);

/// What is known of `rank`, which is late.
LateRank look_for(const Seat& seat, int rank, PeerWatch* watch);

}  // namespace caravan::shared

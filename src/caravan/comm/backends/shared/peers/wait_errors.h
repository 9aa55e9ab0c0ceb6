#pragma once

#include "caravan/comm/backends/shared/peers/peer_watch.h"
#include "caravan/comm/backends/shared/shared_task.h"
#include "caravan/comm/calls/call_errors.h"

namespace caravan::shared {

/// The error that `ranks` did not join the call within `timeout`, with each one's last call and whether its process is
/// stopped. `watch` may be null.
std::exception_ptr late_error(const RankState& state, const Descriptor& call, std::span<const int> ranks,
                              std::chrono::milliseconds timeout, PeerWatch* watch);

/// What is known about `rank`, which is late.
LateRank look_for(const RankState& state, int rank, PeerWatch* watch);

}  // namespace caravan::shared

#include "caravan/comm/shared/wait_errors.h"

#include <algorithm>
#include <vector>

namespace caravan::shared {

std::exception_ptr late_error(const Seat& seat, const Descriptor& call, std::span<const int> ranks,
                              std::chrono::milliseconds timeout, PeerWatch* watch) {
  std::vector<StoppedPeer> stopped;
  if (watch != nullptr) stopped = watch->stopped();
  return caravan::late_error(seat, call, ranks, timeout, [&](int world_rank) {
    LateRank late{seat.segment->rank(world_rank).flight.last_text(world_rank)};
    const auto found = std::ranges::find(stopped, world_rank, &StoppedPeer::world_rank);
    if (found != stopped.end()) late.stopped_process = found->number;
    return late;
  });
}

}  // namespace caravan::shared

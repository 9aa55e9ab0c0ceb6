#include "caravan/comm/backends/shared/peers/wait_errors.h"

#include <algorithm>
#include <vector>

namespace caravan::shared {

LateRank look_for(const RankState& state, int rank, PeerWatch* watch) {
  const auto at = static_cast<size_t>(rank);
  LateRank late{state.segment->rank(state.segment_ranks[at]).flight.last_text(state.world_ranks[at])};
  if (watch == nullptr) return late;
  const std::vector<StoppedPeer> stopped = watch->stopped();
  const auto found = std::ranges::find(stopped, state.segment_ranks[at], &StoppedPeer::world_rank);
  if (found != stopped.end()) late.stopped_process = found->number;
  return late;
}

std::exception_ptr late_error(const RankState& state, const Descriptor& call, std::span<const int> ranks,
                              std::chrono::milliseconds timeout, PeerWatch* watch) {
  return caravan::late_error(state, call, ranks, timeout, [&](int rank) { return look_for(state, rank, watch); });
}

}  // namespace caravan::shared

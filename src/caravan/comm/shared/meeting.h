#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "caravan/comm/rendezvous.h"
#include "caravan/comm/shared/process_watch.h"
#include "caravan/comm/shared/segment.h"

namespace caravan::shared {

struct Meeting {
  std::shared_ptr<Segment> segment;
  std::vector<PeerProcess> peers;  ///< all other ranks
};

/// Brings the processes of one host together: rank 0 makes the memory of the world and gives its descriptor, and one of
/// each process, to every other rank. Every rank of `info` calls it, as often as the others. Throws UsageError if they
/// are not on one host, of one user and of one build, CommError naming the ranks that did not come in `timeout`.
Meeting meet(const RankInfo& info, Store& store, std::chrono::milliseconds timeout);

}  // namespace caravan::shared

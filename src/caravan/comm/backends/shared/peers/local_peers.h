#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "caravan/comm/backends/shared/memory/segment.h"
#include "caravan/comm/backends/shared/peers/process_watch.h"
#include "caravan/comm/store/rendezvous.h"

namespace caravan::shared {

struct LocalPeers {
  std::shared_ptr<Segment> segment;
  std::vector<PeerProcess> peers;  ///< all other ranks
  int num_cores = 1;               ///< distinct ones that the ranks may run on
};

/// Connects the processes of one host: rank 0 creates the memory of the world and sends its descriptor, and the pidfd
/// of every process, to all other ranks. Every rank of `info` calls it, in the same order. Throws UsageError if they do
/// not run on one host, as one user and with one build, CommError naming the ranks that did not join within `timeout`.
LocalPeers connect_local_ranks(const RankInfo& info, Store& store, std::chrono::milliseconds timeout);

}  // namespace caravan::shared

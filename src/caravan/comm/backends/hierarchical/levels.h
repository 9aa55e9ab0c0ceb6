#pragma once

#include <memory>

#include "caravan/comm/backends/hierarchical/topology.h"
#include "caravan/comm/communicator.h"
#include "caravan/comm/level.h"

namespace caravan::hierarchical {

/// The communicators that a hierarchical one is built from.
struct Levels {
  Topology topology;
  int rank = 0;
  std::shared_ptr<Communicator> local;   ///< the ranks of this host, over shared memory, in the order of local ranks
  std::shared_ptr<Communicator> global;  ///< all ranks, over messages; null on one host
  std::shared_ptr<Communicator> cross;   ///< the ranks with this local rank, over messages; null on one host

  int host() const { return topology.host[static_cast<size_t>(rank)]; }
  int local_rank() const { return topology.local_rank[static_cast<size_t>(rank)]; }
  const std::vector<int>& local_ranks() const { return topology.ranks[static_cast<size_t>(host())]; }
  bool is_leader() const { return local_rank() == 0; }
  bool is_local(int other) const { return topology.host[static_cast<size_t>(other)] == host(); }
  /// The communicators that exist, without duplicates.
  std::vector<Level*> all() const {
    std::vector<Level*> levels;
    for (const auto& each : {local, cross, global == cross ? nullptr : global}) {
      if (each != nullptr) levels.push_back(&dynamic_cast<Level&>(*each));
    }
    return levels;
  }
  /// The communicator that can execute every operation by itself; null if two levels are needed.
  Communicator* direct() const {
    if (topology.has_one_host()) return local.get();
    return topology.has_single_ranks() ? global.get() : nullptr;
  }
};

}  // namespace caravan::hierarchical

#pragma once

#include <memory>

#include "caravan/comm/communicator.h"
#include "caravan/comm/hierarchical/topology.h"
#include "caravan/comm/level.h"

namespace caravan::hierarchical {

/// The communicators that one of two levels is made of.
struct Levels {
  Topology topology;
  int rank = 0;
  std::shared_ptr<Communicator> inner;     ///< the ranks of this host, in the order of their places
  std::shared_ptr<Communicator> everyone;  ///< all ranks, over messages; null on one host
  std::shared_ptr<Communicator> cross;     ///< those of this rank's place, host after host; null on one host

  int host() const { return topology.host[static_cast<size_t>(rank)]; }
  int place() const { return topology.place[static_cast<size_t>(rank)]; }
  const std::vector<int>& mates() const { return topology.ranks[static_cast<size_t>(host())]; }
  bool is_leader() const { return place() == 0; }
  /// Those that there are, each once.
  std::vector<Level*> all() const {
    std::vector<Level*> levels;
    for (const auto& each : {inner, cross, everyone == cross ? nullptr : everyone}) {
      if (each != nullptr) levels.push_back(&dynamic_cast<Level&>(*each));
    }
    return levels;
  }
  bool is_mate(int other) const { return topology.host[static_cast<size_t>(other)] == host(); }
  /// The one that alone does what there is to do; null if it takes both levels.
  Communicator* direct() const {
    if (topology.has_one_host()) return inner.get();
    return topology.has_single_ranks() ? everyone.get() : nullptr;
  }
};

}  // namespace caravan::hierarchical

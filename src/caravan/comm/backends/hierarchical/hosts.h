#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "caravan/comm/store/rendezvous.h"

namespace caravan::hierarchical {

/// The host of each rank, by rank: a number, in the order of the hosts' first ranks. Every rank calls it. `host` is the
/// name of this rank's host; if empty, its kernel, network namespace and user identify it. Throws CommError naming the
/// ranks that do not join in time.
std::vector<int> find_hosts(const RankInfo& info, Store& store, const std::string& host,
                            std::chrono::milliseconds timeout);

}  // namespace caravan::hierarchical

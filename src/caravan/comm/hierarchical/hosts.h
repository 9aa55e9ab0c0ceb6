#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "caravan/comm/rendezvous.h"

namespace caravan::hierarchical {

/// Which ranks share a host: a number by rank, in the order of the hosts' first ranks. Every rank calls it. `host` is
/// this one's by its own word; empty: its kernel, network namespace and user. Throws CommError naming the ranks that do
/// not come in time.
std::vector<int> find_hosts(const RankInfo& info, Store& store, const std::string& host,
                            std::chrono::milliseconds timeout);

}  // namespace caravan::hierarchical

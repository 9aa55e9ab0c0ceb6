#pragma once

#include <memory>
#include <vector>

#include "caravan/comm/communicator.h"
#include "caravan/comm/options.h"
#include "caravan/comm/rendezvous.h"

namespace caravan {

/// The world of processes of one host, over shared memory that has no name (a memfd, passed by descriptor): nothing is
/// left behind when ranks are killed. Every rank of `info` calls it. A rank that dies is noticed by the others' waits
/// within half a second, by its process descriptor, and named. Throws UsageError if the ranks are not all on one host
/// or not of one user, CommError if one does not come in time. `world_ranks` is what errors call the ranks, where they
/// are a part of a larger world.
std::shared_ptr<Communicator> make_shm_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                             const CommOptions& options = {}, std::vector<int> world_ranks = {});

}  // namespace caravan

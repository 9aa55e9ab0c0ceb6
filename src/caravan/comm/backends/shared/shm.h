#pragma once

#include <memory>
#include <vector>

#include "caravan/comm/communicator.h"
#include "caravan/comm/options.h"
#include "caravan/comm/store/rendezvous.h"

namespace caravan {

/// A world whose ranks are processes of one host. Its memory is a memfd, whose descriptor is passed between them:
/// nothing is left behind when ranks are killed. Every rank of `info` calls it. Waits detect a rank that has died
/// within half a second, by its pidfd, and name it. `world_ranks`: the ranks' numbers in error messages, if they are
/// part of a larger world. Throws UsageError if the ranks do not run on one host and as one user, CommError if one does
/// not join in time, and ResourceError if limits of this process allow no shared memory.
std::shared_ptr<Communicator> make_shm_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                             const CommOptions& options = {}, std::vector<int> world_ranks = {});

}  // namespace caravan

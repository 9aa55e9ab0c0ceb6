#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "apps/caravan/launch/ranks.h"
#include "caravan/comm/calls/same.h"
#include "caravan/comm/communicator.h"

namespace caravan::app {

/// Whether the ranks of the plan are threads of this process, because no processes were started for them.
bool runs_as_threads(const RankPlan& plan);

/// The number of intra-op threads of each rank: comm.threads_per_rank, or an equal share of the cores of this host.
int threads_per_rank(const Recipe& recipe, const RankPlan& plan);

/// Runs `body` on the ranks of a recipe over its back-end, with its time-out, checks and table of algorithms: on
/// threads of this process, or on this process as one rank of its job. Processes compare `facts`, the table and their
/// hosts before a world is created: ranks with different back-ends would wait for each other in different places.
/// Throws as open_store, make_world and refuse_different_start, and what `body` throws.
void run_recipe_ranks(const Recipe& recipe, const RankPlan& plan, std::vector<SharedFact> facts,
                      const std::function<void(const std::shared_ptr<Communicator>& world)>& body);

}  // namespace caravan::app

#pragma once

#include <vector>

#include "tests/ranks/process_ranks.h"
#include "tests/ranks/rank_case.h"

namespace caravan::testing {

/// A world of two levels, shm and gloo, whose hosts have these numbers of ranks, in rank order: each rank gives the
/// name of its host.
MakeWorld hierarchical_world(const std::vector<int>& hosts);

/// Runs `body` on threads over a hierarchical_world. Each has separate connections and a separate mapping of the shared
/// memory, like processes, which take a second to start.
void run_hierarchical_threads(const std::vector<int>& hosts, const RankBody& body, const CommOptions& options);

/// The same on processes.
void run_hierarchical_ranks(const std::vector<int>& hosts, const RankBody& body, const CommOptions& options);

/// The same, where ranks may end in any way.
std::vector<RankEnd> run_hierarchical_processes(const std::vector<int>& hosts, const RankBody& body,
                                                const CommOptions& options);

/// The function of a RankCase.
template <int... num_ranks>
void run_on_hosts(int /*ranks*/, const RankBody& body, const CommOptions& options) {
  run_hierarchical_threads({num_ranks...}, body, options);
}
template <int... num_ranks>
void run_on_host_processes(int /*ranks*/, const RankBody& body, const CommOptions& options) {
  run_hierarchical_ranks({num_ranks...}, body, options);
}
template <int... num_ranks>
void run_unchecked_on_hosts(int /*ranks*/, const RankBody& body, const CommOptions& options) {
  CommOptions unchecked = options;
  unchecked.check = false;
  run_hierarchical_threads({num_ranks...}, body, unchecked);
}

/// A case whose name has the sizes of its hosts: `hierarchical_2_1_` and the number of ranks.
template <int... num_ranks>
RankCase hierarchical_case() {
  RankCase result{"hierarchical_", (num_ranks + ...), run_on_hosts<num_ranks...>};
  ((result.backend += std::to_string(num_ranks) + "_"), ...);
  result.hosts = {num_ranks...};
  return result;
}

}  // namespace caravan::testing

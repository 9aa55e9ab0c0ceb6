#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "caravan/step/staleness.h"

namespace caravan {

/// The result of the steps between two drains, the same on every rank.
struct SyncReport {
  std::vector<int64_t> clocks{};  ///< steps that each worker has done, since the start of the run
  double loss = 0;                ///< the mean over the targets of these steps of all workers
  double grad_norm = 0;           ///< mean norm of the workers' own gradients, before clipping
  int64_t largest_lead = 0;       ///< the most steps that a worker was ahead of the slowest when it began a step
  StalenessCounts staleness{};    ///< over all shards of all servers
  bool stop = false;              ///< some worker asked to stop
  int64_t slowest() const { return *std::min_element(clocks.begin(), clocks.end()); }
  /// Steps of all workers, since the start of the run.
  int64_t pushes() const { return std::accumulate(clocks.begin(), clocks.end(), int64_t{0}); }
};

}  // namespace caravan

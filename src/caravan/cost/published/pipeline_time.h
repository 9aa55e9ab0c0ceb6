#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "caravan/schedule/pipeline.h"

namespace caravan::published {

/// A pipeline of published software, in the orders of this library.
struct PipelineShape {
  std::string schedule{};  ///< entry of the registry; "": a backward as soon as its gradient has arrived
  int64_t ranks = 1;
  int64_t chunks = 1;  ///< stages of a rank; stage s is on rank s % ranks
  int64_t micro_batches = 1;
};

struct PipelineTime {
  double seconds = 0;
  /// By rank: activations that it holds at most, in micro-batches of a stage.
  std::vector<double> held{};
};

/// Simulates a step; `stages`: by stage. A long step is extrapolated from two short ones, since it repeats itself after
/// some rounds: exact for GPipe and 1F1B. Hundreds of ranks take a closed form.
PipelineTime pipeline_time(const PipelineShape& shape, const std::vector<StageCost>& stages);

}  // namespace caravan::published

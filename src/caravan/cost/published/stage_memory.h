#pragma once

#include <vector>

#include "caravan/cost/published/run.h"

namespace caravan::published {

/// Bytes on a rank of a stage.
struct StageMemory {
  double total = 0;        ///< at the peak, as the row counts it
  double states = 0;       ///< in backward: weights, gradients, optimizer states, gathered units
  double in_step = 0;      ///< of states, in the optimizer's step
  double activations = 0;  ///< kept from forward to backward
  double live = 0;         ///< of the layer whose backward runs
  double logits = 0;
};

/// What a layer keeps for a micro-batch: Korthikanti et al., arXiv 2205.05198, table 2, and the same count for gated
/// MLPs, grouped queries and fused attention.
struct LayerMemory {
  double all = 0;         ///< without recomputation
  double kept = 0;        ///< with that of the run
  double checkpoint = 0;  ///< its input alone
};
LayerMemory layer_memory(const Run& run);

/// `held`: by rank, micro-batches of a stage whose activations it holds at most (pipeline_time).
StageMemory stage_memory(const Run& run, size_t stage, double held);
/// Of the stage that the row names, else of the fullest.
StageMemory run_memory(const Run& run, const std::vector<double>& held);

}  // namespace caravan::published

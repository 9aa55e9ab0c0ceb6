#pragma once

#include <cstdint>
#include <vector>

#include "caravan/nn/config.h"
#include "caravan/schedule/pipeline_choice.h"

namespace caravan {

/// FLOPs of a token, forward and backward, of the units that a pipeline cuts: embedding, each layer, head with loss.
/// Counts matrix products; for experts those that a token uses. The embedding only looks up.
std::vector<double> unit_flops(const ModelConfig& model);

/// What a pipeline is cut by.
struct UnitCosts {
  std::vector<double> of_units{};  ///< of embedding, each layer, and head with loss
  std::vector<double> speeds{};    ///< of the ranks of the pipeline; empty: equal
};

/// The stage of each unit that minimises the time of the slowest stage, its cost by its speed (`speeds`, of each stage;
/// empty: equal): stages are contiguous, and each has at least one layer (a unit other than the first and the last). By
/// dynamic programming, exact.
std::vector<int> cut_by_cost(const std::vector<double>& unit_costs, int64_t stages,
                             const std::vector<double>& speeds = {});

/// The stage of embedding, layers and head by pipeline.cut: by cost; with equal numbers of layers, fewest in the first
/// and the last stage, which also have embedding and head; or as given. `speeds`: as UnitCosts has them. Throws
/// UsageError as PipelineChoice::misfit.
std::vector<int> stage_of_units(const PipelineChoice& choice, const ModelConfig& model,
                                const std::vector<double>& unit_costs, const std::vector<double>& speeds = {});

}  // namespace caravan

#pragma once

#include <cstdint>
#include <vector>

#include "caravan/nn/config.h"
#include "caravan/schedule/pipeline_choice.h"

namespace caravan {

/// FLOPs of a token, forward and backward, of the units that a pipeline cuts: embedding, each layer, head with loss.
/// Matrix products; of experts those that a token takes. The embedding only looks up.
std::vector<double> unit_flops(const ModelConfig& model);

/// The stage of each unit, so that the most expensive stage costs the least: neighbours stay together, and each stage
/// has at least one unit of those that are layers (all but the first and the last). By dynamic programming, exact.
std::vector<int> cut_by_cost(const std::vector<double>& unit_costs, int64_t stages);

/// The stage of embedding, layers and head by pipeline.cut: by cost; as many layers in each, the first and the last,
/// which have embedding and head, the fewest; or by hand. Throws UsageError as PipelineChoice::misfit.
std::vector<int> stage_of_units(const PipelineChoice& choice, const ModelConfig& model,
                                const std::vector<double>& unit_costs);

}  // namespace caravan

#include "caravan/schedule/stages.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/schedule/pipeline_schedule.h"

namespace caravan {
namespace {

/// Units of embedding, layers and head: stage i has layers_of_stage[i] of them.
std::vector<int> by_hand(const std::vector<int64_t>& layers_of_stage) {
  std::vector<int> stages{0};
  for (size_t stage = 0; stage < layers_of_stage.size(); ++stage) {
    stages.insert(stages.end(), static_cast<size_t>(layers_of_stage[stage]), static_cast<int>(stage));
  }
  stages.push_back(stages.back());
  return stages;
}

}  // namespace

std::vector<double> unit_flops(const ModelConfig& model) {
  // Of training on a token of a row; a frozen weight has no gradient.
  const double factor = (model.lora.is_used() ? 2 : 3) / static_cast<double>(model.row_length());
  std::vector<double> flops{0};
  for (int64_t layer = 0; layer < model.layers; ++layer) {  // they may differ: windows, layers without experts
    flops.push_back(factor * model.forward_flops_of_layer(layer, model.context));
  }
  const bool trains_head = model.lora.is_used() && model.lora.saves("head");
  flops.push_back(factor * model.forward_flops_of_head(model.context) * (trains_head ? 1.5 : 1));
  return flops;
}

std::vector<int> cut_by_cost(const std::vector<double>& unit_costs, int64_t stages, const std::vector<double>& speeds) {
  const auto layers = static_cast<int64_t>(unit_costs.size()) - 2;
  if (stages < 1 || layers < stages) {
    throw UsageError({.op = "pipeline",
                      .subject = "stages",
                      .fact = fmt::format("{} stages for {} layers: each has one at least", stages, layers),
                      .action = fmt::format("use {} or fewer", std::max<int64_t>(layers, 1))});
  }
  // least[k][n]: the time of the slowest of k stages for the first n layers; from[k][n]: how many of these are
  // in the first k - 1.
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const auto rows = static_cast<size_t>(stages) + 1;
  const auto columns = static_cast<size_t>(layers) + 1;
  std::vector<std::vector<double>> least(rows, std::vector<double>(columns, kNone));
  std::vector<std::vector<size_t>> from(rows, std::vector<size_t>(columns, 0));
  least[0][0] = 0;
  for (size_t k = 1; k < rows; ++k) {
    const double speed = speeds.empty() ? 1 : speeds[k - 1];
    for (size_t n = k; n < columns; ++n) {
      double cost = (n + 1 == columns && k + 1 == rows ? unit_costs.back() : 0);
      for (size_t before = n; before-- > k - 1;) {
        cost += unit_costs[before + 1];
        const double own = (cost + (k == 1 ? unit_costs.front() : 0)) / speed;
        const double most = std::max(least[k - 1][before], own);
        if (most >= least[k][n]) continue;
        least[k][n] = most;
        from[k][n] = before;
      }
    }
  }
  std::vector<int64_t> counts(static_cast<size_t>(stages));
  size_t n = columns - 1;
  for (size_t k = rows - 1; k > 0; --k) {
    counts[k - 1] = static_cast<int64_t>(n - from[k][n]);
    n = from[k][n];
  }
  return by_hand(counts);
}

std::vector<int> stage_of_units(const PipelineChoice& choice, const ModelConfig& model,
                                const std::vector<double>& unit_costs, const std::vector<double>& speeds) {
  if (const auto misfit = choice.misfit(model, 0)) {
    throw UsageError({.op = "pipeline", .subject = misfit->key, .fact = misfit->fact, .action = misfit->action});
  }
  if (const std::vector<int64_t> layers = choice.layers(); !layers.empty()) return by_hand(layers);
  const std::vector<int> ranks = ranks_of_stages(choice);
  const auto stages = static_cast<int64_t>(ranks.size());
  if (choice.cut() == "layers") return by_hand(even_layers(model.layers, stages));
  std::vector<double> of_stages;
  for (const int rank : ranks) {
    if (!speeds.empty()) of_stages.push_back(speeds[static_cast<size_t>(rank)]);
  }
  return cut_by_cost(unit_costs, stages, of_stages);
}

}  // namespace caravan

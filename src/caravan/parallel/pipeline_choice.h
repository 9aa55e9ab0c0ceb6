#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "caravan/base/misfit.h"
#include "caravan/nn/config.h"

namespace caravan {

/// The choices of pipeline.cut beside a list of numbers of layers: flops, layers, measured.
const std::vector<std::string>& pipeline_cuts();

/// As many layers for each stage; those that are left over go to the middle, because the first stage has the embedding
/// too, and the last one the head.
std::vector<int64_t> even_layers(int64_t layers, int64_t stages);

/// The section pipeline of a recipe, and the degree that its mesh gives it.
struct PipelineChoice {
  int64_t degree = 1;  ///< mesh.pp: ranks that hold stages
  /// An entry of the registry, or a file with a table of its own (pipeline_file.h).
  std::string schedule = "1f1b";
  std::string table{};          ///< the text of the file, if `schedule` names one
  int64_t micro_batches = 0;    ///< of a step; 0: by train.micro_batch, or enough to fill the pipeline
  int64_t stages_per_rank = 0;  ///< 0: the least that the schedule has
  std::string cut = pipeline_cuts().front();
  int64_t drain = 50;  ///< of stages that step on their own: steps after which all stop for a line of the log
  std::vector<int64_t> layers{};  ///< of each stage, if they are given by hand
  bool is_used() const { return degree > 1; }
  bool is_file() const { return !table.empty(); }
  /// Stages update their weights on their own, without waiting for each other.
  bool is_asynchronous() const;
  /// So all of them have done the same in a drain only.
  bool has_windows() const { return is_used() && is_asynchronous(); }
  /// The costs by which it is cut are measured when the run starts.
  bool measures() const { return layers.empty() && cut == "measured"; }
  /// Stages on each rank.
  int64_t chunks() const;
  int64_t num_stages() const { return degree * chunks(); }
  /// Why it cannot be used for that model and number of micro-batches (0: not known).
  std::optional<Misfit> misfit(const ModelConfig& model, int64_t num_micro_batches) const;
};

}  // namespace caravan

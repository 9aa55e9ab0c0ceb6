#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "caravan/base/misfit.h"
#include "caravan/nn/config.h"
#include "caravan/registry/setting.h"

namespace caravan {

/// The choices of pipeline.cut besides a list of numbers of layers: flops, layers, measured.
const std::vector<std::string>& pipeline_cuts();

/// Equal numbers of layers for all stages; remaining layers go to the middle stages, because the first stage also has
/// the embedding, and the last one the head.
std::vector<int64_t> even_layers(int64_t layers, int64_t stages);

/// The section pipeline of a recipe, and the degree that its mesh gives it.
struct PipelineChoice {
  int64_t degree = 1;  ///< mesh.pp: ranks that hold stages
  Setting schedule{"pipeline"};
  std::string file{};   ///< with a custom table instead of the schedule's (pipeline_file.h); "": none
  std::string table{};  ///< the text of the file
  bool is_used() const { return degree > 1; }
  bool is_file() const { return !file.empty(); }
  const std::string& name() const { return is_file() ? file : schedule.name(); }
  /// Micro-batches in a step; 0: from train.micro_batch, or enough to fill the pipeline.
  int64_t micro_batches() const { return schedule.whole("micro_batches"); }
  int64_t stages_per_rank() const { return schedule.whole("stages_per_rank"); }  ///< 0: the minimum of the schedule
  /// One of pipeline_cuts, or the layers of each stage, given explicitly. The other is empty.
  std::string cut() const;
  std::vector<int64_t> layers() const;
  /// Whether stages update their weights without waiting for each other.
  bool is_asynchronous() const;
  /// If so, all stages have done the same steps only at a drain.
  bool has_windows() const { return is_used() && is_asynchronous(); }
  /// Whether the costs for its cut are measured when the run starts.
  bool measures() const { return cut() == "measured"; }
  /// Number of stages on each rank.
  int64_t chunks() const;
  int64_t num_stages() const { return degree * chunks(); }
  /// Why it cannot be used for this model and number of micro-batches (0: not known).
  std::optional<Misfit> misfit(const ModelConfig& model, int64_t num_micro_batches) const;
};

}  // namespace caravan

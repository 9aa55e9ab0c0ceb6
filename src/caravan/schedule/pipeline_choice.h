#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "caravan/base/misfit.h"
#include "caravan/nn/config.h"
#include "caravan/registry/setting.h"

namespace caravan {

/// The choices of pipeline.cut beside a list of numbers of layers: flops, layers, measured.
const std::vector<std::string>& pipeline_cuts();

/// As many layers for each stage; those that are left over go to the middle, because the first stage has the embedding
/// too, and the last one the head.
std::vector<int64_t> even_layers(int64_t layers, int64_t stages);

/// The section pipeline of a recipe, and the degree that its mesh gives it.
struct PipelineChoice {
  int64_t degree = 1;  ///< mesh.pp: ranks that hold stages
  Setting schedule{"pipeline"};
  std::string file{};   ///< with a table of its own in place of the schedule's (pipeline_file.h); "": none
  std::string table{};  ///< the text of the file
  bool is_used() const { return degree > 1; }
  bool is_file() const { return !file.empty(); }
  const std::string& name() const { return is_file() ? file : schedule.name(); }
  /// Of a step; 0: by train.micro_batch, or enough to fill the pipeline.
  int64_t micro_batches() const { return schedule.whole("micro_batches"); }
  int64_t stages_per_rank() const { return schedule.whole("stages_per_rank"); }  ///< 0: the least of the schedule
  /// One of pipeline_cuts, or the layers of each stage, given by hand. The other is empty.
  std::string cut() const;
  std::vector<int64_t> layers() const;
  /// Stages update their weights on their own, without waiting for each other.
  bool is_asynchronous() const;
  /// So all of them have done the same in a drain only.
  bool has_windows() const { return is_used() && is_asynchronous(); }
  /// The costs by which it is cut are measured when the run starts.
  bool measures() const { return cut() == "measured"; }
  /// Stages on each rank.
  int64_t chunks() const;
  int64_t num_stages() const { return degree * chunks(); }
  /// Why it cannot be used for that model and number of micro-batches (0: not known).
  std::optional<Misfit> misfit(const ModelConfig& model, int64_t num_micro_batches) const;
};

}  // namespace caravan

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "caravan/nn/config.h"

namespace caravan {

/// The choices of pipeline.schedule in a recipe, the default first: 1f1b, gpipe, naive, interleaved, zb-h1, zb-h2,
/// zb-v, pipedream, pipedream-2bw. Known without libtorch. A recipe may also name a file with a table of its own
/// (pipeline_file.h).
const std::vector<std::string>& pipeline_schedules();
/// The choices of pipeline.cut beside a list of numbers of layers: flops, layers, measured.
const std::vector<std::string>& pipeline_cuts();

/// As many layers for each stage; those that are left over go to the middle, because the first stage has the embedding
/// too, and the last one the head.
std::vector<int64_t> even_layers(int64_t layers, int64_t stages);

/// The section pipeline of a recipe, and the degree that its mesh gives it.
struct PipelineChoice {
  int64_t degree = 1;  ///< mesh.pp: ranks that hold stages
  std::string schedule = pipeline_schedules().front();
  std::string table{};          ///< the text of the file, if `schedule` names one
  int64_t micro_batches = 0;    ///< of a step; 0: by train.micro_batch, or enough to fill the pipeline
  int64_t stages_per_rank = 0;  ///< interleaved: 2 or more; zb-v: 2; others: 1. 0: the least of these
  std::string cut = pipeline_cuts().front();
  int64_t drain = 50;             ///< pipedream: steps after which all stages stop for a line of the log
  std::vector<int64_t> layers{};  ///< of each stage, if they are given by hand
  bool is_used() const { return degree > 1; }
  bool is_file() const { return !table.empty(); }
  /// Stages update their weights on their own, without waiting for each other.
  bool is_asynchronous() const { return schedule == "pipedream" || schedule == "pipedream-2bw"; }
  /// So all of them have done the same in a drain only.
  bool has_windows() const { return is_used() && is_asynchronous(); }
  /// The costs by which it is cut are measured when the run starts.
  bool measures() const { return layers.empty() && cut == "measured"; }
  int64_t chunks() const {
    return stages_per_rank > 0 ? stages_per_rank : schedule == "interleaved" || schedule == "zb-v" ? 2 : 1;
  }
  int64_t num_stages() const { return degree * chunks(); }
  /// What is wrong with it for that model and number of micro-batches (0: not known), and what to use; "" if nothing.
  std::string wrong_with(const ModelConfig& model, int64_t num_micro_batches) const;
};

}  // namespace caravan

#pragma once

#include <string>
#include <vector>

#include "caravan/engine/strategy.h"
#include "caravan/schedule/pipeline_schedule.h"

namespace caravan {

struct PipelineOptions {
  std::string axis = "pp";
  /// The schedule, stages_per_rank and, for pipedream-2bw, micro_batches; not its cut. `degree` is the size of the
  /// axis.
  PipelineChoice choice{};
  /// The stage of each of model.blocks(); empty: cut evenly.
  std::vector<int> stage_of_block{};
  bool recompute = false;  ///< stages keep only their inputs, and repeat their forward before their backward
  /// Every micro-batch of a step has the same shapes where stages meet; see Strategy.
  bool has_static_shapes = true;
};

/// Splits the blocks of the model over `axis` into stages, which work on different micro-batches at the same time, in
/// the order of a schedule (pipeline_schedule.h). The outputs of a stage, any number of tensors, are the inputs of the
/// next; stages in between pass on what a later stage needs.
///
///   parameters  are stored on their stage, S(0; on its rank); one that several stages use is stored on the first of
///               them, and is gathered and reduced once a step over the ranks that use it
///   sends       the inputs of each stage, and their gradients, for each micro-batch
///   memory      the activations of as many micro-batches as the schedule holds (schedule/pipeline.h); with `recompute`
///               the inputs of as many, and the activations of one
///   loss        P on the axis: the last stage has it. Divide by the global count, not by that of a micro-batch
///
/// Every rank calls it with the same options, before the Engine is made; data parallelism, splits of layers and
/// recompute may come before or after, but units are split (FsdpOptions::units) after it. Run steps with a StageRunner.
///
/// Throws UsageError for a schedule without a table for these numbers, and for more stages than blocks. (Huang et al.,
/// arXiv 1811.06965; Narayanan et al., arXiv 2104.04473; Qi et al., arXiv 2401.10241.)
void add_pipeline(Strategy& strategy, Mesh& mesh, const PipelineOptions& options);

}  // namespace caravan

#include "caravan/techniques/pipeline/pipeline.h"

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

/// Equal numbers of blocks in all stages, up to one.
std::vector<int> even_stages(int64_t blocks, int64_t stages) {
  std::vector<int> result;
  for (int64_t block = 0; block < blocks; ++block) result.push_back(static_cast<int>(block * stages / blocks));
  return result;
}

}  // namespace

void add_pipeline(Strategy& strategy, Mesh& mesh, const PipelineOptions& options) {
  PipelineChoice choice = options.choice;
  choice.degree = mesh[options.axis].size();
  const std::vector<int> rank_of_stage = ranks_of_stages(choice);
  const auto blocks = static_cast<int64_t>(strategy.units.size());
  const auto stages = static_cast<int64_t>(rank_of_stage.size());
  if (blocks < stages) {
    throw UsageError({"pipeline", "stages", fmt::format("{} stages for {} blocks", stages, blocks), mesh.where(),
                      fmt::format("use at most {} stages", blocks)});
  }
  add_stages(strategy, mesh, options.axis,
             options.stage_of_block.empty() ? even_stages(blocks, stages) : options.stage_of_block, rank_of_stage);
  strategy.name += strategy.name.empty() ? choice.name() : " " + choice.name();
  strategy.has_static_shapes = options.has_static_shapes;
  if (choice.is_asynchronous()) {
    strategy.unsharded_memory = UnshardedMemory::stashed;
    strategy.reduces_each_micro_batch = true;
  }
  if (schedule_of(choice).updates == PipelineSchedule::Updates::each_batch) {
    strategy.batch_of_versions = static_cast<int>(choice.micro_batches());
  }
  strategy.passes = [choice, recompute = options.recompute](int num_micro_batches) {
    return pipeline_order(choice, num_micro_batches, recompute).ranks;
  };
}

}  // namespace caravan

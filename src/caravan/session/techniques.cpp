#include "caravan/session/techniques.h"

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {

Setting ddp(const DdpChoice& choice) { return {"data_parallel", "ddp", {{"bucket_bytes", choice.bucket_bytes}}}; }

Setting zero(const ZeroChoice& choice) {
  if (choice.stage != 1 && choice.stage != 2) {
    throw UsageError({"parallelize", "zero", fmt::format("there is no stage {}", choice.stage), "",
                      choice.stage == 3 ? "use fsdp(), which is stage 3" : "use stage 1 or 2, or fsdp() for stage 3"});
  }
  return {"data_parallel", fmt::format("zero{}", choice.stage)};
}

Setting fsdp(const FsdpChoice& choice) {
  std::vector<std::pair<std::string, RecipeValue>> values{
      {"units", choice.units}, {"reshard_after_forward", choice.reshard_after_forward}, {"prefetch", choice.prefetch}};
  if (choice.shard != 0) values.emplace_back("shard", choice.shard);
  return {"data_parallel", choice.shard != 0 ? "hsdp" : "zero3", values};
}

Setting pipeline(const PipelineSettings& choice) {
  std::vector<std::pair<std::string, RecipeValue>> values;
  if (choice.micro_batches != 0) values.emplace_back("micro_batches", choice.micro_batches);
  if (choice.stages_per_rank != 0) values.emplace_back("stages_per_rank", choice.stages_per_rank);
  return {"pipeline", choice.schedule, values};
}

Setting recompute(const RecomputeChoice& choice) {
  if (choice.modules.empty()) return {"recompute", "full"};
  return {"recompute", "modules", {{"modules", choice.modules}}};
}

Setting offload(const OffloadChoice& choice) {
  std::vector<std::pair<std::string, RecipeValue>> values{{"optimizer", choice.optimizer},
                                                          {"gradients", choice.gradients},
                                                          {"parameters", choice.parameters},
                                                          {"activations", choice.activations}};
  if (!choice.disk_dirs.empty()) values.emplace_back("disk_dirs", choice.disk_dirs);
  if (!choice.device_budget.empty()) values.emplace_back("device_budget", choice.device_budget);
  const OffloadChoice usual;
  if (choice.prefetch != usual.prefetch) values.emplace_back("prefetch", choice.prefetch);
  if (choice.delayed_update) values.emplace_back("delayed_update", true);
  if (choice.delay_after != usual.delay_after) values.emplace_back("delay_after", choice.delay_after);
  return {"offload", "offload_tiers", values};
}

Setting tiling(const TilingChoice& choice) {
  std::vector<std::pair<std::string, RecipeValue>> values{{"tiles", choice.tiles}};
  if (!choice.modules.empty()) values.emplace_back("modules", choice.modules);
  return {"tiling", "tiled_rows", values};
}

PrecisionChoice mixed_precision(const MixedPrecision& choice) {
  return {.compute = choice.compute, .gradients = choice.gradients, .reduce = choice.reduce};
}

}  // namespace caravan

#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "caravan/engine/bucket_bytes.h"
#include "caravan/registry/setting.h"
#include "caravan/techniques/precision_choice.h"

namespace caravan {

/// One of the techniques that parallelize() combines: any entry of the registry with its keys, as in a recipe,
///   Setting("data_parallel", "hsdp", {{"shard", 2}}), Setting("hook", "powersgd", {{"rank", 4}}),
/// or one of the functions below; and the precision. Of each family of the registry one.
using Technique = std::variant<Setting, PrecisionChoice>;

/// Distributed data parallel (techniques/data/ddp.h).
struct DdpChoice {
  int64_t bucket_bytes = kBucketBytes;
};
Setting ddp(const DdpChoice& choice = {});

/// ZeRO-1 and ZeRO-2: the optimizer's state rests in shards, with stage 2 gradients too (techniques/data/zero.h).
struct ZeroChoice {
  int stage = 1;
};
Setting zero(const ZeroChoice& choice = {});

/// FSDP, which is ZeRO-3, and HSDP (techniques/data/zero.h).
struct FsdpChoice {
  /// Patterns of the units that are gathered on their own, "blocks.*"; empty: all units of the model.
  std::vector<std::string> units{};
  bool reshard_after_forward = true;
  int64_t prefetch = 1;
  int64_t shard = 0;  ///< HSDP: so many ranks share one set of shards; 0: all
};
Setting fsdp(const FsdpChoice& choice = {});

/// Stages over the axis pp of the mesh (techniques/pipeline/pipeline.h). Units are cut evenly.
struct PipelineSettings {
  std::string schedule = "1f1b";
  int64_t micro_batches = 0;    ///< of a step; 0: ParallelOptions::micro_batches
  int64_t stages_per_rank = 0;  ///< 0: the least of the schedule
};
Setting pipeline(const PipelineSettings& choice = {});

/// Activations are computed again in backward (techniques/recompute/recompute.h).
struct RecomputeChoice {
  std::vector<std::string> modules{};  ///< patterns; empty: all blocks
};
Setting recompute(const RecomputeChoice& choice = {});

/// Layers compute in bf16, parameters and moments rest in fp32: mixed_precision({.compute = "bf16"}).
inline PrecisionChoice mixed_precision(PrecisionChoice choice = {.compute = "bf16"}) { return choice; }

}  // namespace caravan

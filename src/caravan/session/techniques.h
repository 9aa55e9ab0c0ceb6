#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "caravan/engine/bucket_bytes.h"
#include "caravan/global/names.h"
#include "caravan/registry/setting.h"
#include "caravan/techniques/precision_choice.h"

namespace caravan {

/// Tensor parallelism of a torch::nn::Module of one's own, on axes of the mesh other than dp and pp: its parameters are
/// split by layouts, or by names of dims and rules, and its forward computes with global tensors (global/global.h,
/// docs/global_tensors.md). What goes from unit to unit is whole on each rank of these axes.
struct TensorChoice {
  std::vector<NamedLayout> layouts{};
  std::vector<DimNames> names{};
  DimRules rules{};
  DimExtents extents{};
};
TensorChoice tensor(std::vector<NamedLayout> layouts);
/// As named_layouts().
TensorChoice tensor(std::vector<DimNames> names, DimRules rules, DimExtents extents = {});

/// One of the techniques that parallelize() combines: any entry of the registry with its keys, as in a recipe,
///   Setting("data_parallel", "hsdp", {{"shard", 2}}), Setting("hook", "powersgd", {{"hook_rank", 4}}),
/// or one of the functions of this file. Of each family of the registry one.
using Technique = std::variant<Setting, PrecisionChoice, TensorChoice>;

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
  /// Patterns of modules inside the model's units that are gathered on their own, "blocks.*.mlp". Each unit of the
  /// model is gathered on its own anyway: a pattern that fits units is checked and changes nothing.
  std::vector<std::string> units{};
  bool reshard_after_forward = true;
  int64_t prefetch = 1;
  int64_t shard = 0;  ///< HSDP: so many ranks share one set of shards; 0: all
};
Setting fsdp(const FsdpChoice& choice = {});

/// Stages over the axis pp of the mesh (techniques/pipeline/pipeline.h), one without it. Units are cut evenly.
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

/// Where state and activations rest while the device does not need them: "none" (the device), "host" or "disk"
/// (techniques/offload/offload.h, docs/offload.md). An optimizer of torch::optim steps parameters and gradients in host
/// memory; with those on disk use one of this library, whose moments rest where `optimizer` says:
///   AdamW optimizer(model.engine().state(), {.weight_decay = 0.01});    // caravan/optim/optimizer.h
struct OffloadChoice {
  std::string parameters = "none";
  std::string gradients = "none";
  std::string optimizer = "none";  ///< moments of an optimizer of this library, and fp32 parameters
  std::string activations = "none";
  std::vector<std::string> disk_dirs{};  ///< folders on local disks, over which data is striped
  std::string device_budget{};           ///< the most that the device of a rank may hold in a step, such as "1.5G"
  int64_t prefetch = 1;                  ///< units loaded ahead
  /// The host's update of a step runs beside the next step, which does not see it: with an optimizer of this library,
  /// whose start_step() does not wait for it. The first `delay_after` updates are not delayed.
  bool delayed_update = false;
  int64_t delay_after = 40;
};
Setting offload(const OffloadChoice& choice);

/// Weights of a Model of this library are cut into tiles of rows (techniques/tiling/tiling.h, docs/tiling.md).
struct TilingChoice {
  int64_t tiles = 4;
  std::vector<std::string> modules{};  ///< patterns; empty: all layers that can be cut
};
Setting tiling(const TilingChoice& choice = {});

/// Layers compute in bf16, parameters and moments are stored in fp32 (docs/precision.md).
struct MixedPrecision {
  std::string compute = "bf16";
  std::string gradients = "fp32";  ///< in which gradients are kept
  std::string reduce = "auto";     ///< in which they are reduced; auto: as they are kept
};
PrecisionChoice mixed_precision(const MixedPrecision& choice = {});

/// The C++ expression that makes it: "fsdp({.prefetch = 2})".
std::string to_code(const Technique& technique);

}  // namespace caravan

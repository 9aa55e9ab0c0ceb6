#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "caravan/engine/strategy.h"

namespace caravan {

/// Keeps state and activations of a run in host memory or on disk while the device does not need them.
/// (Ren et al., "ZeRO-Offload", arXiv 2101.06840; Rajbhandari et al., "ZeRO-Infinity", arXiv 2104.07857.)
///
///   optimizer    fp32 parameters and moments rest there, and the host steps them; the device keeps the parameters in
///                the dtype of the arithmetic
///   parameters   unsharded parameters are on the device from a fetch before their unit to its end, in forward and in
///                backward; with ZeRO-1 and ZeRO-2 they are then gathered by unit, as in ZeRO-3
///   gradients    go there as they are reduced; those of micro-batches add up there, or, where ranks do not reduce
///                each micro-batch, their sums go there and come back
///   activations  what a unit saves for its backward is away between the two
///
/// Results are bit-equal to those without, unless updates are delayed. Bytes over the link in a step, for P parameters
/// of a rank's shard of e bytes (4, 2 in 16 bits) and m micro-batches: gradients down, at most 4 P m; parameters up,
/// 2 e P m; the optimizer on the host e P up; on disk 12 P read and written too, with AdamW, and 4 P more read if
/// updates are delayed.
struct OffloadOptions {
  Tier optimizer = Tier::device;
  Tier parameters = Tier::device;
  Tier gradients = Tier::device;
  Tier activations = Tier::device;
  std::vector<std::filesystem::path> disk_dirs{};  ///< folders on local disks, over which data is striped
  int prefetch = 1;                                ///< number of units loaded ahead
  /// Nothing in a step waits for the gradient of the whole model: no clipping, no loss scale. Groups then step as soon
  /// as their gradients are complete, if these are away.
  bool steps_early = false;
  /// Updates after this many of a run are delayed by one step: each runs on the host beside the whole next step, which
  /// computes with the parameters without it (ZeRO-Offload, section 5.2). Groups then do not step early. Before a
  /// checkpoint call Engine::catch_up(). None: no update is delayed.
  std::optional<int64_t> delay_after{};
};

/// Adds it to a strategy, after data parallelism. Throws UsageError for disks without folders, for weights that are
/// stashed, and for updates that cannot be delayed: the device steps the optimizer, or layers read what it writes.
void add_offload(Strategy& strategy, const OffloadOptions& options);

}  // namespace caravan

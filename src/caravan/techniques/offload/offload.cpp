#include "caravan/techniques/offload/offload.h"

#include <algorithm>

#include "caravan/base/error.h"

namespace caravan {

namespace {

/// An update beside a step may not write what the step reads.
void check_delay(const Strategy& strategy, const OffloadOptions& options) {
  if (options.optimizer == Tier::device) {
    throw UsageError({"offload", "delay_after", "the device steps the optimizer, between steps", "",
                      "offload the optimizer, or leave it out"});
  }
  if (options.parameters != options.optimizer || strategy.compute_dtype != at::kFloat) return;
  throw UsageError({"offload", "delay_after", "layers are given the parameters that the optimizer writes", "",
                    "compute in 16 bits, offload parameters to another tier than the optimizer, or leave it out"});
}

}  // namespace

void add_offload(Strategy& strategy, const OffloadOptions& options) {
  if (options.delay_after) check_delay(strategy, options);
  const auto tiers = {options.optimizer, options.parameters, options.gradients, options.activations};
  if (std::ranges::all_of(tiers, [](Tier tier) { return tier == Tier::device; })) return;
  if (std::ranges::find(tiers, Tier::disk) != tiers.end() && options.disk_dirs.empty()) {
    throw UsageError(
        {"offload", "disk_dirs", "no folder for what is offloaded to disk", "", "set it to folders on local disks"});
  }
  if (strategy.stashes_weights() || strategy.unsharded_memory == UnshardedMemory::versions) {
    throw UsageError({"offload", strategy.name, "keeps versions of whole weights on the device", "",
                      "use ranks that step together, or no offload"});
  }
  strategy.optimizer_tier = options.optimizer;
  strategy.parameters_tier = options.parameters;
  strategy.gradients_tier = options.gradients;
  strategy.disk_dirs = options.disk_dirs;
  strategy.fetch_ahead = options.prefetch;
  if (options.parameters != Tier::device) {
    strategy.unsharded_memory = UnshardedMemory::freed;
    strategy.gathers.free_after_forward = true;
  }
  // An early step must not write what backward still reads: unsharded parameters that ranks share, or that are the
  // sharded ones. Nor what the next step reads, if that must not see it.
  const bool is_apart = options.optimizer != Tier::device || options.parameters != Tier::device;
  const bool shares = strategy.unsharded_memory == UnshardedMemory::shared;
  strategy.delay_after = options.delay_after;
  strategy.steps_early =
      options.steps_early && !options.delay_after && options.gradients != Tier::device && is_apart && !shares;
  move_activations(strategy, options.activations);
}

}  // namespace caravan

#pragma once

#include <string>
#include <vector>

#include "caravan/engine/strategy.h"

namespace caravan {

/// Which modules are recomputed.
struct RecomputeOptions {
  /// Names, * stands for any characters; modules inside go with them. Empty: the blocks of the model's list of blocks,
  /// "blocks.0", .. but neither embedding nor head. "*attention.core": the cores of attention.
  std::vector<std::string> modules{};
  std::string hint{};  ///< what to do if the model has none of them; "": the nearest name
};

/// Lets modules keep nothing of their forward but its inputs; backward runs the forward again right before it needs it.
/// (Chen et al., "Training deep nets with sublinear memory cost", 2016; cores of attention: Korthikanti et al.,
/// "Reducing activation recomputation in large transformer models", 2022.)
///
///   layouts   unchanged. The results are the same bit for bit: random numbers are drawn alike, buffers (running
///             statistics) move once, each parameter's gradient has the same summands
///   memory    blocks: the input of each, and one block's activations while its backward runs
///   sends     what the recomputed modules send in forward, once more. A gathered group is gathered once for both
///   time      blocks: one more forward of them
///
/// Called on every rank with the same options, after a plan is applied and the strategy's units are known, before the
/// Engine is made. Stages, data axes and other hooks may come before or after. In a model without a list of blocks
/// (Module::blocks of a module in it), such as a ModuleAdapter, these are all of the model's own blocks().
///
/// A user's torch::nn::Module draws from torch's default generator of the CPU: it is set back for the recomputation,
/// and then put back. Ranks that are threads share it; draw there with one rank a process.
///
/// Throws UsageError for a pattern that no module's name matches, a module inside another that is recomputed, and a
/// module that holds units but is none. In a step: for a forward that changes its inputs in place, for autocast around
/// the module (not inside), and for gradients other than those of backward().
void add_recompute(Strategy& strategy, Module& model, const RecomputeOptions& options = {});

}  // namespace caravan

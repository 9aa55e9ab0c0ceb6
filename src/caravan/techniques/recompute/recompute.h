#pragma once

#include <string>
#include <vector>

#include "caravan/engine/strategy.h"

namespace caravan {

/// Which modules are recomputed.
struct RecomputeOptions {
  /// Name patterns, * stands for any characters; submodules are included. Empty: the blocks of the model's list of
  /// blocks, "blocks.0", .. but neither embedding nor head. "*attention.core": the cores of attention.
  std::vector<std::string> modules{};
  std::string hint{};  ///< what to do if no module matches; "": the nearest name
};

/// Modules keep only the inputs of their forward; backward repeats the forward right before it needs the activations.
/// (Chen et al., "Training deep nets with sublinear memory cost", 2016; cores of attention: Korthikanti et al.,
/// "Reducing activation recomputation in large transformer models", 2022.)
///
///   layouts   unchanged. The results are the same bit for bit: random numbers are the same, buffers (running
///             statistics) are updated once, each parameter's gradient has the same summands
///   memory    blocks: the input of each, and one block's activations while its backward runs
///   sends     what the recomputed modules send in forward, once more. A gathered group is gathered once for both
///   time      one more forward of the blocks
///
/// Called on every rank with the same options, after a plan is applied and the strategy's units are known, before the
/// Engine is made. Stages, data axes and other hooks may come before or after. In a model without a list of blocks
/// (Module::blocks of a module in it), such as a ModuleAdapter, these are all of the model's own blocks().
///
/// A user's torch::nn::Module draws from torch's default generator of the CPU: it is rewound for the recomputation, and
/// restored afterwards. Ranks that are threads share it; to draw from it use one rank a process.
///
/// Throws UsageError for a pattern that no module's name matches, a module that is not run by itself, one inside
/// another recomputed one, and a module that contains units but is not a unit. In a step: for a forward that changes
/// its inputs in place, for autocast around the module (not inside), and for gradients other than those of backward().
void add_recompute(Strategy& strategy, Module& model, const RecomputeOptions& options = {});

}  // namespace caravan

#pragma once

#include "caravan/engine/strategy.h"
#include "caravan/memory/recompute_choice.h"

namespace caravan {

/// Lets modules keep nothing of their forward but its inputs; backward runs the forward again right before it needs it.
/// (Chen et al., "Training deep nets with sublinear memory cost", 2016; `selective`: Korthikanti et al., "Reducing
/// activation recomputation in large transformer models", 2022.)
///
///   layouts   unchanged. The results are the same bit for bit: random numbers are drawn alike, buffers (running
///             statistics) move once, each parameter's gradient has the same summands
///   memory    full: the input of each block, and one block's activations while its backward runs
///   sends     what the recomputed modules send in forward, once more. A gathered group is gathered once for both
///   time      full: one more forward of the blocks
///
/// Called on every rank with the same choice, after a plan is applied and the strategy's units are known, before the
/// Engine is made. Stages, data axes and other hooks may come before or after. In a model without a list of blocks
/// (Module::blocks of a module in it), such as a ModuleAdapter, `full` stands for all of the model's own blocks().
///
/// A user's torch::nn::Module draws from torch's default generator of the CPU: it is set back for the recomputation,
/// and then put back. Ranks that are threads share it; draw there with one rank a process.
///
/// Throws UsageError for a pattern that no module's name matches, a module inside another that is recomputed, and a
/// module that holds units but is none. In a step: for a forward that changes its inputs in place, for autocast around
/// the module (not inside), and for gradients other than those of backward().
void add_recompute(Strategy& strategy, Module& model, const RecomputeChoice& choice);

}  // namespace caravan

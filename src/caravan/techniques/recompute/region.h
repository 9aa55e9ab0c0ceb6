#pragma once

#include "caravan/module/module.h"

namespace caravan {

/// Runs `next` so that autograd keeps only the inputs; backward runs it again, with Phase::recompute. An ordinary run
/// if nothing is kept: in evaluation, in a dry run, inside another region, or if nothing is trained. `draws`: it may
/// draw from torch's default generator. Errors as add_recompute.
Tensors run_region(Module& module, Tensors inputs, const ForwardContext& context, const Next& next, bool draws);

}  // namespace caravan

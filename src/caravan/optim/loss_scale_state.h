#pragma once

#include <memory>

#include "caravan/engine/training_state.h"
#include "caravan/optim/loss_scale.h"

namespace caravan {

/// The state of `scale`, which outlives it, as a tensor in fp32. A load changes only a dynamic scale.
std::unique_ptr<StateOwner> state_of(LossScale& scale);

}  // namespace caravan

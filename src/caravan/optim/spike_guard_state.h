#pragma once

#include <memory>

#include "caravan/engine/training_state.h"
#include "caravan/optim/spike_guard.h"

namespace caravan {

/// The state of `guard`, which outlives it, as a tensor in fp32.
std::unique_ptr<StateOwner> state_of(SpikeGuard& guard);

}  // namespace caravan

#pragma once

#include <memory>

#include "caravan/optim/optimizer.h"
#include "caravan/registry/setting.h"

namespace caravan {

/// The chosen optimizer for the parameters of `state`, which outlives it.
std::unique_ptr<Optimizer> make_optimizer(const Setting& setting, FlatState& state);

}  // namespace caravan

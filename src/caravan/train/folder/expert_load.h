#pragma once

#include <optional>

#include "caravan/engine/engine.h"
#include "caravan/train/folder/metrics.h"

namespace caravan {

/// What the experts of each layer were chosen for since the last call, over all ranks; nothing for a model without
/// experts. Every rank calls it. Sends 8 bytes an expert, and 16 a layer.
std::optional<ExpertLoad> take_expert_load(Engine& engine);

}  // namespace caravan

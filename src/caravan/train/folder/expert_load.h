#pragma once

#include <optional>

#include "caravan/engine/engine.h"
#include "caravan/train/folder/metrics.h"

namespace caravan {

/// How often each layer's experts were chosen since the last call, over all ranks; nothing for a model without experts.
/// Every rank calls it. Sends 8 bytes an expert, and 16 a layer.
std::optional<ExpertLoad> take_expert_load(Engine& engine);

}  // namespace caravan

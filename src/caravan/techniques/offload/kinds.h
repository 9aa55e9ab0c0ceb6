#pragma once

#include <array>

namespace caravan {

/// What may be offloaded: the keys of a recipe's section offload that name a tier, in the order in which "auto" moves
/// them.
inline constexpr std::array<const char*, 4> kOffloadKinds{"optimizer", "gradients", "parameters", "activations"};

}  // namespace caravan

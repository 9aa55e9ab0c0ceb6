#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "caravan/registry/setting.h"

namespace caravan {

/// What may be offloaded: the keys of a recipe's section offload that name a tier, in the order in which "auto" moves
/// them.
inline constexpr std::array<const char*, 4> kOffloadKinds{"optimizer", "gradients", "parameters", "activations"};

/// Whether the section offload gives some kind this tier, "auto" included.
inline bool uses_tier(const Setting& offload, std::string_view tier) {
  return std::ranges::any_of(kOffloadKinds, [&](const char* kind) { return offload.text(kind) == tier; });
}
/// Whether it gives some kind a tier beyond the device.
inline bool is_offload_used(const Setting& offload) {
  return std::ranges::any_of(kOffloadKinds, [&](const char* kind) { return offload.text(kind) != "none"; });
}

}  // namespace caravan

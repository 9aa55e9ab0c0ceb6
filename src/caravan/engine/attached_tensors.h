#pragma once

namespace caravan {

/// Prefix of the names of checkpoint tensors that a program of one's own has attached: see session/kept.h.
inline constexpr const char* kAttachedTensors = "attached.";

}  // namespace caravan

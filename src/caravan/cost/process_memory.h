#pragma once

#include <cstdint>

namespace caravan {

/// What a rank takes beside its tensors.
inline constexpr int64_t kProcessBytes = int64_t{160} << 20;

/// The memory for a rank's tensors when `ranks_on_host` share a host of `host_bytes`: 0 if that is 0 (unknown).
int64_t memory_share(int64_t host_bytes, int ranks_on_host) noexcept;

}  // namespace caravan

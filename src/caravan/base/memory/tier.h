#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace caravan {

/// Where a rank keeps tensors: where it computes, in the memory of its host, or on the host's disks.
enum class Tier : uint8_t { device, host, disk };
inline constexpr size_t kNumTiers = 3;

/// "device", "host", "disk"
constexpr std::string_view name(Tier tier) noexcept {
  return tier == Tier::device ? "device" : tier == Tier::host ? "host" : "disk";
}

}  // namespace caravan

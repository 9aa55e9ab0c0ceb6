#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>

#include "caravan/base/memory/memory_counter.h"

namespace caravan {

/// In the order of MemoryKind; activations are everything else, including the batch and workspace.
inline constexpr std::array<std::string_view, kNumMemoryKinds> kMemoryKindNames{"activations", "parameters",
                                                                                "gradients", "optimizer", "buffers"};

/// Bytes of one rank's tensors, by kind.
struct MemoryBytes {
  std::array<int64_t, kNumMemoryKinds> of{};

  int64_t& operator[](MemoryKind kind) noexcept { return of[static_cast<size_t>(kind)]; }
  int64_t operator[](MemoryKind kind) const noexcept { return of[static_cast<size_t>(kind)]; }
  int64_t total() const noexcept { return std::accumulate(of.begin(), of.end(), int64_t{0}); }
  /// Parameters, gradients and optimizer state.
  int64_t state() const noexcept { return total() - (*this)[MemoryKind::other] - (*this)[MemoryKind::buffers]; }
};

}  // namespace caravan

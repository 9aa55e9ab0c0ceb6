#pragma once

#include <cstddef>

namespace caravan::shared {

inline constexpr size_t kPage = 4096;

/// The bytes of the pages that `bytes` take.
constexpr size_t whole_pages(size_t bytes) noexcept { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace caravan::shared

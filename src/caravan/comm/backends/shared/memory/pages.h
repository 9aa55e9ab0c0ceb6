#pragma once

#include <cstddef>

namespace caravan::shared {

inline constexpr size_t kPage = 4096;

/// `bytes`, rounded up to whole pages.
constexpr size_t whole_pages(size_t bytes) noexcept { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace caravan::shared

#pragma once

#include <cstddef>
#include <span>

namespace caravan {

/// Takes the pages of `bytes`, part of a MappedFile, out of the memory of this process; they are mapped again when they
/// are read. For files that may be larger than memory: otherwise all that was read counts as memory of the process
/// until the kernel is short of some.
void drop_mapped_pages(std::span<const std::byte> bytes) noexcept;

}  // namespace caravan

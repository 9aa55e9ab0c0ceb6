#pragma once

#include <cstddef>

namespace caravan {

inline constexpr size_t kHugePage = size_t{2} << 20;

/// Private anonymous memory that begins at a multiple of kHugePage, which the kernel backs with huge pages where it has
/// them; nullptr if it has no room. Returned by munmap.
void* map_huge(size_t bytes) noexcept;

/// Moves the memory behind the huge page `from` to the huge page `to`, both of map_huge: its contents, without a copy.
/// `from` then reads as zeros, and takes new memory when it is written; what `to` held before is gone. Returns false if
/// the kernel refuses: then `from` is as before, and `to` is memory of unspecified contents.
bool move_huge_page(void* from, void* to);

/// Whether this kernel moves pages, which Linux does from 5.7 on.
bool can_move_pages() noexcept;

/// Returns the memory behind a huge page of map_huge to the kernel: it reads as zeros.
void drop_huge_page(void* page) noexcept;

}  // namespace caravan

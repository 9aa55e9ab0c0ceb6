#include "caravan/base/memory/huge_pages.h"

#include <cerrno>
#include <cstdint>
#include <sys/mman.h>
#include <unistd.h>

#include "caravan/base/error.h"

// Memory is moved as GMLake stitches that of an accelerator (arXiv 2401.08156): the addresses of tensors stay, and what
// is behind them changes.

namespace caravan {
namespace {

constexpr int kMove = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
constexpr int kProtection = PROT_READ | PROT_WRITE;
constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;

bool try_a_move() noexcept {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* pages = mmap(nullptr, 2 * page, kProtection, kPrivate, -1, 0);
  if (pages == MAP_FAILED) return false;
  auto* from = static_cast<volatile unsigned char*>(pages);
  volatile unsigned char* to = from + page;
  *from = 1;
  void* target = static_cast<unsigned char*>(pages) + page;
  const bool is_moved = mremap(pages, page, page, kMove, target) == target && *to == 1 && *from == 0;
  munmap(pages, 2 * page);
  return is_moved;
}

}  // namespace

void* map_huge(size_t bytes) noexcept {
  // The kernel backs only aligned ranges with huge pages: map one more and trim both ends.
  void* raw = mmap(nullptr, bytes + kHugePage, kProtection, kPrivate, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = (start + kHugePage - 1) & ~(kHugePage - 1);
  if (aligned > start) munmap(raw, aligned - start);
  const size_t tail = start + kHugePage - aligned;
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + bytes), tail);
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);  // only a hint: if it fails, speed suffers
  return reinterpret_cast<void*>(aligned);
}

bool move_huge_page(void* from, void* to) {
  if (mremap(from, kHugePage, kHugePage, kMove, to) == to) return true;
  // The kernel may have unmapped `to` before it refused. Where it has not, nothing is mapped.
  if (mmap(to, kHugePage, kProtection, kPrivate | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED) {
    if (errno == EEXIST) return false;
    throw ResourceError({.op = "memory",
                         .subject = "",
                         .fact = "the kernel maps no more pages into this process",
                         .action = "raise vm.max_map_count"});
  }
  madvise(to, kHugePage, MADV_HUGEPAGE);
  return false;
}

bool can_move_pages() noexcept {
  static const bool can = try_a_move();
  return can;
}

void drop_huge_page(void* page) noexcept { madvise(page, kHugePage, MADV_DONTNEED); }

}  // namespace caravan

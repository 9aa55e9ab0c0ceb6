#include "caravan/base/memory/block_cache.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <sys/mman.h>
#include <utility>

namespace caravan {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMappedFrom = kHugePage / 4 * 3;  // smaller blocks come from malloc, others are a page or more
constexpr size_t kCacheSlack = size_t{64} << 20;
/// Each page that is away is a mapping of its own, as may be the one that has its memory, and a process has 65530.
constexpr size_t kMostLent = 8192;

void* from_system(size_t bytes) {
  return BlockCache::has_pages(bytes) ? map_huge(bytes) : std::aligned_alloc(kAlignment, bytes);
}

uintptr_t address_of(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }
void* memory_at(uintptr_t address) { return reinterpret_cast<void*>(address); }

/// The addresses of the first `count` pages of a block.
std::vector<uintptr_t> pages_of(const void* block, size_t count) {
  std::vector<uintptr_t> pages;
  for (size_t i = 0; i < count; ++i) pages.push_back(address_of(block) + i * kHugePage);
  return pages;
}

bool move_nothing(void* /*from*/, void* /*to*/) { return true; }

}  // namespace

BlockCache::BlockCache(bool is_dry)
    : is_dry_(is_dry),
      move_(!can_move_pages() ? nullptr
            : is_dry          ? &move_nothing
                              : &move_huge_page) {}

void BlockCache::give_back(void* block, size_t bytes) const {
  if (is_dry_) return;
  if (has_pages(bytes)) {
    munmap(block, bytes);
  } else {
    std::free(block);
  }
}

size_t BlockCache::rounded(size_t bytes) noexcept {
  bytes = std::max(bytes, kAlignment * kSteps);
  const size_t step = std::bit_floor(bytes) / kSteps;
  bytes = (bytes + step - 1) / step * step;
  return bytes > kMappedFrom ? std::max(bytes, kHugePage) : bytes;
}

bool BlockCache::has_pages(size_t rounded_bytes) noexcept { return rounded_bytes >= kHugePage; }

int BlockCache::class_of(size_t rounded_bytes) noexcept {
  const size_t floor = std::bit_floor(rounded_bytes);
  return std::bit_width(rounded_bytes) * kSteps + static_cast<int>((rounded_bytes - floor) / (floor / kSteps)) - kSteps;
}

size_t BlockCache::bytes_of(int index) noexcept {
  const size_t floor = size_t{1} << (index / kSteps);
  return floor + floor / kSteps * (index % kSteps);
}

void* BlockCache::take(size_t rounded_bytes) {
  const std::lock_guard lock(mutex_);
  auto& blocks = free_[class_of(rounded_bytes)];
  Free taken;
  if (!blocks.empty()) {
    taken = blocks.back();
    blocks.pop_back();
    cached_bytes_ -= rounded_bytes;
    hollow_pages_ -= taken.num_hollow;
  } else {
    taken.block = fresh(rounded_bytes);
    if (taken.block == nullptr) return nullptr;
    if (has_lent_ && has_pages(rounded_bytes)) taken.num_hollow = rounded_bytes / kHugePage;
  }
  if (taken.num_hollow > 0) fill(pages_of(taken.block, taken.num_hollow));
  live_bytes_ += rounded_bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  note_peak();
  return taken.block;
}

void BlockCache::put(void* block, size_t rounded_bytes) {
  const std::lock_guard lock(mutex_);
  live_bytes_ -= rounded_bytes;
  if (has_pages(rounded_bytes) && forget_pages(block, rounded_bytes)) return give_back(block, rounded_bytes);
  free_[class_of(rounded_bytes)].push_back({block});
  cached_bytes_ += rounded_bytes;
}

/// Whether some pages of the block were away.
bool BlockCache::forget_pages(void* block, size_t bytes) {
  const uintptr_t begin = address_of(block);
  spare_.erase(spare_.lower_bound(begin), spare_.lower_bound(begin + bytes));
  const auto first = away_.lower_bound(begin), end = away_.lower_bound(begin + bytes);
  const bool had_some = first != end;
  away_.erase(first, end);
  return had_some;
}

int64_t BlockCache::peak_held_bytes() {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(peak_held_bytes_);
}

void BlockCache::note_peak() noexcept {
  const size_t without = (hollow_pages_ + away_.size()) * kHugePage;
  peak_held_bytes_ = std::max(peak_held_bytes_, live_bytes_ + cached_bytes_ - without);
}

void BlockCache::release_all() {
  const std::lock_guard lock(mutex_);
  release_down_to(0);
  drop_spare();
}

void* BlockCache::fresh(size_t rounded_bytes) {
  // A training step allocates the same sizes repeatedly. A program whose sizes change (generation with a growing cache)
  // must not keep blocks of every size that it ever used, so the total stays within 5/4 of the peak.
  const size_t limit = std::max(peak_bytes_, live_bytes_ + rounded_bytes) * 5 / 4 + kCacheSlack;
  const size_t wanted = live_bytes_ + rounded_bytes;
  if (wanted + cached_bytes_ > limit) release_down_to(limit - wanted);
  if (is_dry_) return memory_at(std::exchange(next_dry_, next_dry_ + (rounded_bytes / kHugePage + 1) * kHugePage));
  for (int attempt = 0; attempt < 2; ++attempt) {
    void* block = from_system(rounded_bytes);
    if (block != nullptr) return block;
    release_down_to(0);
    drop_spare();
  }
  return nullptr;
}

void BlockCache::release_down_to(size_t cached_limit) {
  for (int k = kClasses - 1; k >= 0 && cached_bytes_ > cached_limit; --k) {
    while (!free_[k].empty() && cached_bytes_ > cached_limit) {
      const Free last = free_[k].back();
      free_[k].pop_back();
      give_back(last.block, bytes_of(k));
      cached_bytes_ -= bytes_of(k);
      hollow_pages_ -= last.num_hollow;
    }
  }
}

// ---- lent pages ----

size_t BlockCache::lend(void* address, size_t bytes) {
  if (move_ == nullptr) return 0;
  const uintptr_t begin = (address_of(address) + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (address_of(address) + bytes) / kHugePage * kHugePage;
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (uintptr_t page = begin; page < end; page += kHugePage) {
    if (!away_.contains(page)) {
      if (!spare_.contains(page) && spare_.size() + away_.size() >= kMostLent) break;
      spare_.insert(page);
    }
    ++count;
  }
  has_lent_ |= count > 0;
  return count;
}

void BlockCache::reclaim(void* address, size_t bytes) {
  const uintptr_t begin = address_of(address) / kHugePage * kHugePage;
  const uintptr_t end = address_of(address) + bytes;
  const std::lock_guard lock(mutex_);
  spare_.erase(spare_.lower_bound(begin), spare_.lower_bound(end));
  const auto first = away_.lower_bound(begin), last = away_.lower_bound(end);
  if (first == last) return;
  const std::vector<uintptr_t> pages(first, last);
  away_.erase(first, last);
  fill(pages);
  note_peak();
}

/// Gives memory that nobody uses to `pages`, which have none. What remains gets new memory when it is touched.
void BlockCache::fill(const std::vector<uintptr_t>& pages) {
  const size_t filled = fill_from_spare(pages);
  if (filled < pages.size()) fill_from_cached(pages, filled);
}

/// Returns how many pages have got some.
size_t BlockCache::fill_from_spare(const std::vector<uintptr_t>& pages) {
  size_t filled = 0;
  while (filled < pages.size() && !spare_.empty() && move(*spare_.begin(), pages[filled])) {
    away_.insert(spare_.extract(spare_.begin()));
    ++filled;
  }
  return filled;
}

/// The same for the pages from `next` on. The largest classes first, which are the least often taken again.
void BlockCache::fill_from_cached(const std::vector<uintptr_t>& pages, size_t next) {
  for (int k = kClasses - 1; has_pages(bytes_of(k)); --k) {
    for (Free& free : free_[k]) {
      for (; free.num_hollow < bytes_of(k) / kHugePage; ++free.num_hollow, ++hollow_pages_) {
        if (next == pages.size() || !move(address_of(free.block) + free.num_hollow * kHugePage, pages[next])) return;
        ++next;
      }
    }
  }
}

bool BlockCache::move(uintptr_t from, uintptr_t to) const { return move_(memory_at(from), memory_at(to)); }

void BlockCache::drop_spare() {
  if (!is_dry_) {
    for (const uintptr_t page : spare_) drop_huge_page(memory_at(page));
  }
  away_.merge(spare_);
}

}  // namespace caravan

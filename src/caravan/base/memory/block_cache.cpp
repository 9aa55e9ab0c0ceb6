#include "caravan/base/memory/block_cache.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <sys/mman.h>

namespace caravan {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMappedFrom = 2 * kHugePage;  // smaller blocks come from malloc
constexpr size_t kCacheSlack = size_t{64} << 20;

void* map_huge(size_t bytes) {
  // The kernel backs only aligned ranges with huge pages: map one more and trim both ends.
  void* raw = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = (start + kHugePage - 1) & ~(kHugePage - 1);
  if (aligned > start) munmap(raw, aligned - start);
  const size_t tail = start + kHugePage - aligned;
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + bytes), tail);
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);  // only a hint: if it fails, speed suffers
  return reinterpret_cast<void*>(aligned);
}

void* from_system(size_t bytes) {
  return bytes >= kMappedFrom ? map_huge(bytes) : std::aligned_alloc(kAlignment, bytes);
}

}  // namespace

void BlockCache::give_back(void* block, size_t bytes) const {
  if (is_dry_) return;
  if (bytes >= kMappedFrom) {
    munmap(block, bytes);
  } else {
    std::free(block);
  }
}

size_t BlockCache::rounded(size_t bytes) noexcept {
  bytes = std::max(bytes, kAlignment * kSteps);
  const size_t step = std::bit_floor(bytes) / kSteps;
  bytes = (bytes + step - 1) / step * step;
  return bytes >= kMappedFrom ? (bytes + 4095) & ~size_t{4095} : bytes;
}

int BlockCache::class_of(size_t rounded_bytes) noexcept {
  const size_t floor = std::bit_floor(rounded_bytes);
  return std::bit_width(rounded_bytes) * kSteps + static_cast<int>((rounded_bytes - floor) / (floor / kSteps)) - kSteps;
}

void* BlockCache::take(size_t rounded_bytes) {
  const std::lock_guard lock(mutex_);
  auto& blocks = free_[class_of(rounded_bytes)];
  void* block = nullptr;
  if (!blocks.empty()) {
    block = blocks.back();
    blocks.pop_back();
    cached_bytes_ -= rounded_bytes;
  } else {
    block = fresh(rounded_bytes);
    if (block == nullptr) return nullptr;
  }
  live_bytes_ += rounded_bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  peak_held_bytes_ = std::max(peak_held_bytes_, live_bytes_ + cached_bytes_);
  return block;
}

void BlockCache::put(void* block, size_t rounded_bytes) {
  const std::lock_guard lock(mutex_);
  free_[class_of(rounded_bytes)].push_back(block);
  cached_bytes_ += rounded_bytes;
  live_bytes_ -= rounded_bytes;
}

int64_t BlockCache::peak_held_bytes() {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(peak_held_bytes_);
}

void BlockCache::release_all() {
  const std::lock_guard lock(mutex_);
  release_down_to(0);
}

void* BlockCache::fresh(size_t rounded_bytes) {
  // A training step allocates the same sizes repeatedly. A program whose sizes change (generation with a growing cache)
  // must not keep blocks of every size that it ever used, so the total stays within 5/4 of the peak.
  const size_t limit = std::max(peak_bytes_, live_bytes_ + rounded_bytes) * 5 / 4 + kCacheSlack;
  const size_t wanted = live_bytes_ + rounded_bytes;
  if (wanted + cached_bytes_ > limit) release_down_to(limit - wanted);
  for (int attempt = 0; attempt < 2; ++attempt) {
    void* block = is_dry_ ? this : from_system(rounded_bytes);
    if (block != nullptr) return block;
    release_down_to(0);
  }
  return nullptr;
}

void BlockCache::release_down_to(size_t cached_limit) {
  for (int k = kClasses - 1; k >= 0 && cached_bytes_ > cached_limit; --k) {
    const size_t floor = size_t{1} << (k / kSteps);
    const size_t bytes = floor + floor / kSteps * (k % kSteps);
    while (!free_[k].empty() && cached_bytes_ > cached_limit) {
      give_back(free_[k].back(), bytes);
      free_[k].pop_back();
      cached_bytes_ -= bytes;
    }
  }
}

}  // namespace caravan

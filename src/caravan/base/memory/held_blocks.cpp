#include "caravan/base/memory/held_blocks.h"

#include <algorithm>
#include <map>
#include <utility>

#include "caravan/base/memory/block_cache.h"

namespace caravan {

struct HeldBlocks {
  BlockCache cache{/*is_dry=*/true};
  std::map<size_t, int64_t> for_good{};
  int64_t others = 0, peak_others = 0;
  bool is_ignored = false;
};

namespace {

thread_local std::shared_ptr<HeldBlocks> held_blocks;

}  // namespace

HeldBlocksScope::HeldBlocksScope(bool ignores)
    : blocks_(std::make_shared<HeldBlocks>()), outer_(std::exchange(held_blocks, blocks_)) {
  blocks_->is_ignored = ignores;
}

HeldBlocksScope::~HeldBlocksScope() { held_blocks = outer_; }

void HeldBlocksScope::hold_once(size_t key, int64_t bytes) {
  if (held_blocks != nullptr) held_blocks->for_good.emplace(key, bytes);
}

void HeldBlocksScope::hold(int64_t bytes) {
  if (held_blocks == nullptr) return;
  held_blocks->others += bytes;
  held_blocks->peak_others = std::max(held_blocks->peak_others, held_blocks->others);
}

bool HeldBlocksScope::is_ignored() noexcept { return held_blocks != nullptr && held_blocks->is_ignored; }

int64_t HeldBlocksScope::peak_bytes() const {
  int64_t bytes = blocks_->cache.peak_held_bytes() + blocks_->peak_others;
  for (const auto& [key, of_key] : blocks_->for_good) bytes += of_key;
  return bytes;
}

DryBlock::DryBlock(size_t bytes, size_t header_bytes)
    : charge_(MemoryCharge::take(static_cast<int64_t>(bytes))), held_(held_blocks), header_bytes_(header_bytes) {
  if (held_ == nullptr || held_->is_ignored || bytes == 0) return;
  rounded_bytes_ = BlockCache::rounded(bytes + header_bytes);
  block_ = held_->cache.take(rounded_bytes_);
}

DryBlock::~DryBlock() {
  charge_.release();
  if (block_ != nullptr) held_->cache.put(block_, rounded_bytes_);
}

PageLoan DryBlock::loan(size_t offset, size_t bytes) const {
  if (block_ == nullptr || !BlockCache::has_pages(rounded_bytes_)) return {};
  std::byte* data = static_cast<std::byte*>(block_) + header_bytes_;
  return {std::shared_ptr<BlockCache>(held_, &held_->cache), data + offset, bytes};
}

}  // namespace caravan

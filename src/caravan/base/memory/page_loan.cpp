#include "caravan/base/memory/page_loan.h"

#include <utility>

#include "caravan/base/memory/block_cache.h"

namespace caravan {

PageLoan::PageLoan(std::shared_ptr<BlockCache> cache, void* address, size_t bytes)
    : cache_(std::move(cache)), address_(address), bytes_(bytes) {}

size_t PageLoan::lend() const { return cache_ == nullptr ? 0 : cache_->lend(address_, bytes_); }

void PageLoan::reclaim(size_t offset, size_t bytes) const {
  if (cache_ != nullptr) cache_->reclaim(static_cast<std::byte*>(address_) + offset, bytes);
}

}  // namespace caravan

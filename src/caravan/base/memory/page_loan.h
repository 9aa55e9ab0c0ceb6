#pragma once

#include <cstddef>
#include <memory>

namespace caravan {

class BlockCache;

/// Lends the pages of memory whose contents are not needed for a while to the blocks that are allocated meanwhile, such
/// as those of gradients to activations. Addresses stay as they are: what is behind them changes. Moving a page of
/// 2 MiB takes microseconds, while new memory is cleared first. Does nothing for memory that has no pages to lend.
class PageLoan {
 public:
  PageLoan() = default;
  /// Of `bytes` in a block in use of `cache`.
  PageLoan(std::shared_ptr<BlockCache> cache, void* address, size_t bytes);

  /// From here on the contents are unspecified, and what is written may be lost. Returns the number of pages that are
  /// lent.
  size_t lend() const;
  /// These bytes, and those that share their pages, have memory again, of unspecified contents.
  void reclaim(size_t offset, size_t bytes) const;

 private:
  std::shared_ptr<BlockCache> cache_;
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace caravan

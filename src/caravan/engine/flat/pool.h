#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/base/memory/held_blocks.h"
#include "caravan/comm/communicator.h"

namespace caravan {

/// Flat buffers of Communicator::allocate that come and go within a step. Memory that is given back is kept for the
/// next buffer of its size: returning it to the kernel would cost a page fault for each page, every step. With what is
/// kept there is never more than was in use at once, however sizes differ and in whichever order messages come.
class BufferPool {
 public:
  /// `comm` outlives the pool and its buffers. On the meta device these have no memory, and the most that was in use is
  /// charged: what is free beside them depends on the order in which messages come, and is never more.
  BufferPool(Communicator& comm, bool is_meta) : comm_(comm), is_meta_(is_meta) {}

  /// `count` elements; their contents are undefined. It goes back to the pool when the last reference to its storage is
  /// gone.
  at::Tensor take(int64_t count, at::ScalarType type);
  /// Returns the memory of buffers that nobody has to the communicator, and forgets how much there was in use.
  void trim();
  /// Bytes of all buffers that there are.
  int64_t bytes() const noexcept { return is_meta_ ? kept_->most : kept_->in_use + kept_->free_bytes; }

 private:
  struct Kept {
    std::multimap<int64_t, std::shared_ptr<void>> free{};  ///< by bytes
    int64_t free_bytes = 0;
    int64_t in_use = 0;                                ///< bytes
    int64_t most = 0;                                  ///< that were in use at once
    std::vector<std::unique_ptr<DryBlock>> charged{};  ///< on the meta device: `most` in all
  };

  std::shared_ptr<void> find(int64_t bytes);

  Communicator& comm_;
  bool is_meta_;
  std::shared_ptr<Kept> kept_ = std::make_shared<Kept>();
};

}  // namespace caravan

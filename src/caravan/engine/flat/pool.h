#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/base/memory/held_blocks.h"
#include "caravan/comm/communicator.h"

namespace caravan {

/// Transient flat buffers of a step, from Communicator::allocate. Freed memory is kept for the next buffer of its size:
/// returning it to the kernel would cost a page fault for each page, every step. The pool never holds more than was in
/// use at once, regardless of the sizes of buffers and the order of messages.
class BufferPool {
 public:
  /// `comm` outlives the pool and its buffers. On the meta device buffers have no memory, and the peak in use is
  /// charged: actual memory depends on the order of messages, and is never more.
  BufferPool(Communicator& comm, bool is_meta) : comm_(comm), is_meta_(is_meta) {}

  /// `count` elements with undefined contents. The buffer returns to the pool when the last reference to its storage is
  /// gone. `room`: elements of the buffer's memory if that is larger, such as the common size of chunks.
  at::Tensor take(int64_t count, at::ScalarType type, int64_t room = 0);
  /// Returns the memory of unused buffers to the communicator, and resets the peak.
  void trim();
  /// Bytes of all buffers in existence.
  int64_t bytes() const noexcept;

 private:
  struct Kept {
    std::mutex mutex{};                                    ///< copies between tiers end on other threads
    std::multimap<int64_t, std::shared_ptr<void>> free{};  ///< by bytes
    int64_t free_bytes = 0;
    int64_t in_use = 0;                                ///< bytes
    int64_t most = 0;                                  ///< peak of in_use
    std::vector<std::unique_ptr<DryBlock>> charged{};  ///< on the meta device: `most` in total
  };

  std::shared_ptr<void> find(int64_t bytes);

  Communicator& comm_;
  bool is_meta_;
  std::shared_ptr<Kept> kept_ = std::make_shared<Kept>();
};

}  // namespace caravan

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include <ATen/core/Tensor.h>

namespace caravan {

/// A caching allocator over a communicator's memory. A freed buffer is kept for the next request of its size, as long
/// as the total does not exceed the peak use: FSDP2 requests the same buffers in every step, and faulting in new pages
/// costs more than the collective. Buffers may be freed by any thread; operations hold the tensors that they use.
class C10dMemory : public std::enable_shared_from_this<C10dMemory> {
 public:
  using Allocate = std::function<std::shared_ptr<void>(size_t bytes)>;

  /// A flat, uninitialised tensor. Calls `allocate` if no buffer of its size is cached.
  at::Tensor tensor(int64_t count, at::ScalarType type, const Allocate& allocate);
  /// Frees the cached buffers and caches no more.
  void close() noexcept;

 private:
  std::shared_ptr<void> take(size_t bytes);
  void give_back(size_t bytes, std::shared_ptr<void> memory);

  std::mutex mutex_;
  bool is_closed_ = false;
  std::multimap<size_t, std::shared_ptr<void>> kept_;
  size_t kept_bytes_ = 0;
  size_t used_bytes_ = 0;
  size_t most_used_bytes_ = 0;
};

}  // namespace caravan

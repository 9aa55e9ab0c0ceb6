#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include <ATen/core/Tensor.h>

namespace caravan {

/// The memory of one communicator that c10d's users asked for. What they free is kept for the next one of its size, up
/// to the most that was ever in use: FSDP2 asks for the same buffers in every step, and fresh pages cost more than the
/// collective. Any thread may free; an operation holds the tensors it works on, so what is freed is in nobody's use.
class C10dMemory : public std::enable_shared_from_this<C10dMemory> {
 public:
  using Allocate = std::function<std::shared_ptr<void>(size_t bytes)>;

  /// A flat tensor, not zeroed. `allocate` is called if nothing of its size is kept.
  at::Tensor tensor(int64_t count, at::ScalarType type, const Allocate& allocate);
  /// Lets go of what is kept, and keeps no more.
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

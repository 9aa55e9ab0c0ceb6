#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include <ATen/core/Tensor.h>

#include "caravan/comm/communicator.h"

namespace caravan {

/// Flat buffers of Communicator::allocate that come and go within a step. Memory that is given back is kept for the
/// next buffer: returning it to the kernel would cost a page fault for each page, every step.
class BufferPool {
 public:
  /// What a kept buffer serves. A buffer of the same size, as those of units are: then the memory of a step is bounded
  /// by what is in flight at once, whichever message comes first. Or down to half of it, for sizes that vary.
  enum class Reuse { same_size, half_size };

  /// `comm` outlives the pool and its buffers, which on the meta device have no memory and are kept all the same.
  BufferPool(Communicator& comm, bool is_meta, Reuse reuse = Reuse::same_size)
      : comm_(comm), is_meta_(is_meta), reuse_(reuse) {}

  /// `count` elements; their contents are undefined. It goes back to the pool when the last reference to its storage is
  /// gone.
  at::Tensor take(int64_t count, at::ScalarType type);
  /// Returns the memory of buffers that nobody has to the communicator.
  void trim();
  /// Bytes of all buffers that there are.
  int64_t bytes() const noexcept { return *bytes_; }

 private:
  using Free = std::multimap<int64_t, std::shared_ptr<void>>;  ///< by bytes

  std::shared_ptr<void> allocate(int64_t bytes);

  Communicator& comm_;
  bool is_meta_;
  Reuse reuse_;
  std::shared_ptr<Free> free_ = std::make_shared<Free>();
  std::shared_ptr<int64_t> bytes_ = std::make_shared<int64_t>(0);
};

}  // namespace caravan

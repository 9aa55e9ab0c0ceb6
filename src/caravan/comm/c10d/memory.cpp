#include "caravan/comm/c10d/memory.h"

#include <algorithm>

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"

namespace caravan {

at::Tensor C10dMemory::tensor(int64_t count, at::ScalarType type, const Allocate& allocate) {
  if (count < 0) {
    throw ShapeError({.op = "allocateTensor",
                      .fact = fmt::format("there is no buffer of {} elements", count),
                      .action = "give 0 or more elements"});
  }
  const size_t bytes = static_cast<size_t>(count * size_bytes(to_dtype(type)));
  std::shared_ptr<void> memory = take(bytes);
  if (memory == nullptr) memory = allocate(bytes);
  void* data = memory.get();
  const auto release = [self = shared_from_this(), bytes, memory = std::move(memory)](void*) mutable {
    self->give_back(bytes, std::move(memory));
  };
  return at::from_blob(data, {count}, release, at::TensorOptions(type));
}

std::shared_ptr<void> C10dMemory::take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  used_bytes_ += bytes;
  most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
  auto found = kept_.extract(bytes);
  if (found.empty()) return nullptr;
  kept_bytes_ -= bytes;
  return std::move(found.mapped());
}

void C10dMemory::give_back(size_t bytes, std::shared_ptr<void> memory) {
  const std::lock_guard lock(mutex_);
  used_bytes_ -= bytes;
  if (is_closed_ || kept_bytes_ + bytes > most_used_bytes_) return;
  kept_.emplace(bytes, std::move(memory));
  kept_bytes_ += bytes;
}

void C10dMemory::close() noexcept {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  kept_.clear();
  kept_bytes_ = 0;
}

}  // namespace caravan

#include "caravan/engine/pool.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

namespace caravan {

at::Tensor BufferPool::take(int64_t count, at::ScalarType type) {
  const auto options = at::TensorOptions().dtype(type);
  if (is_meta_) return at::empty({count}, options.device(at::kMeta));
  const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(type));
  std::shared_ptr<void> memory;
  // Units of about the same size share buffers.
  const auto found = free_->lower_bound(bytes);
  int64_t size = bytes;
  if (found != free_->end() && found->first <= 2 * bytes) {
    size = found->first;
    memory = std::move(found->second);
    free_->erase(found);
  } else {
    memory = comm_.allocate(static_cast<size_t>(bytes));
    *bytes_ += bytes;
  }
  const auto give_back = [free = std::weak_ptr(free_), size, memory](void*) {
    if (const auto pool = free.lock()) pool->emplace(size, memory);
  };
  return at::from_blob(memory.get(), {count}, give_back, options);
}

void BufferPool::trim() {
  for (const auto& [bytes, memory] : *free_) *bytes_ -= bytes;
  free_->clear();
}

}  // namespace caravan

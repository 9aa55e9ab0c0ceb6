#include "caravan/engine/pool.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include "caravan/base/held_blocks.h"
#include "caravan/base/memory_counter.h"

namespace caravan {

at::Tensor BufferPool::take(int64_t count, at::ScalarType type) {
  const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(type));
  std::shared_ptr<void> memory;
  const auto found = free_->lower_bound(bytes);
  int64_t size = bytes;
  if (found != free_->end() && found->first <= (reuse_ == Reuse::same_size ? bytes : 2 * bytes)) {
    size = found->first;
    memory = std::move(found->second);
    free_->erase(found);
  } else {
    memory = allocate(bytes);
    *bytes_ += bytes;
  }
  const auto give_back = [free = std::weak_ptr(free_), size, memory](void*) {
    if (const auto pool = free.lock()) pool->emplace(size, memory);
  };
  const at::Device device = is_meta_ ? at::kMeta : at::kCPU;
  return at::from_blob(memory.get(), {count}, give_back, at::TensorOptions().dtype(type).device(device), device);
}

std::shared_ptr<void> BufferPool::allocate(int64_t bytes) {
  const MemoryKindScope kind(MemoryKind::buffers);
  if (!is_meta_) return comm_.allocate(static_cast<size_t>(bytes));
  return {nullptr, [block = std::make_shared<DryBlock>(static_cast<size_t>(bytes), 0)](void*) {}};
}

void BufferPool::trim() {
  for (const auto& [bytes, memory] : *free_) *bytes_ -= bytes;
  free_->clear();
}

}  // namespace caravan

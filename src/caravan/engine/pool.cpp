#include "caravan/engine/pool.h"

#include <algorithm>
#include <iterator>

#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include "caravan/base/held_blocks.h"
#include "caravan/base/memory_counter.h"

namespace caravan {

at::Tensor BufferPool::take(int64_t count, at::ScalarType type) {
  const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(type));
  Kept& kept = *kept_;
  kept.in_use += bytes;
  kept.most = std::max(kept.most, kept.in_use);
  std::shared_ptr<void> memory;
  const auto found = kept.free.find(bytes);
  if (found != kept.free.end()) {
    memory = std::move(found->second);
    kept.free.erase(found);
    kept.free_bytes -= bytes;
  } else {
    while (!kept.free.empty() && kept.in_use + kept.free_bytes > kept.most) {
      const auto largest = std::prev(kept.free.end());
      kept.free_bytes -= largest->first;
      kept.free.erase(largest);
    }
    memory = allocate(bytes);
  }
  const auto give_back = [to = std::weak_ptr(kept_), bytes, memory](void*) {
    const auto pool = to.lock();
    if (!pool) return;
    pool->in_use -= bytes;
    pool->free_bytes += bytes;
    pool->free.emplace(bytes, memory);
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
  kept_->free.clear();
  kept_->free_bytes = 0;
  kept_->most = kept_->in_use;
}

}  // namespace caravan

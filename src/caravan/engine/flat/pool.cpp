#include "caravan/engine/flat/pool.h"

#include <algorithm>
#include <iterator>

#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include "caravan/base/memory/memory_counter.h"

namespace caravan {

at::Tensor BufferPool::take(int64_t count, at::ScalarType type, int64_t room) {
  const int64_t bytes = std::max(count, room) * static_cast<int64_t>(c10::elementSize(type));
  const MemoryKindScope kind(MemoryKind::buffers);
  Kept& kept = *kept_;
  std::unique_lock lock(kept.mutex);
  kept.in_use += bytes;
  const int64_t grown = std::max<int64_t>(kept.in_use - kept.most, 0);
  kept.most += grown;
  if (is_meta_ && grown > 0) kept.charged.push_back(std::make_unique<DryBlock>(static_cast<size_t>(grown), 0));
  const std::shared_ptr<void> memory = is_meta_ ? nullptr : find(bytes);
  lock.unlock();
  const auto give_back = [to = std::weak_ptr(kept_), bytes, memory](void*) {
    const auto pool = to.lock();
    if (!pool) return;
    const std::lock_guard guard(pool->mutex);
    pool->in_use -= bytes;
    if (memory == nullptr) return;
    pool->free_bytes += bytes;
    pool->free.emplace(bytes, memory);
  };
  const at::Device device = is_meta_ ? at::kMeta : at::kCPU;
  return at::from_blob(memory.get(), {count}, give_back, at::TensorOptions().dtype(type).device(device), device);
}

std::shared_ptr<void> BufferPool::find(int64_t bytes) {
  Kept& kept = *kept_;
  if (const auto found = kept.free.find(bytes); found != kept.free.end()) {
    kept.free_bytes -= bytes;
    return std::move(kept.free.extract(found).mapped());
  }
  while (!kept.free.empty() && kept.in_use + kept.free_bytes > kept.most) {
    const auto largest = std::prev(kept.free.end());
    kept.free_bytes -= largest->first;
    kept.free.erase(largest);
  }
  return comm_.allocate(static_cast<size_t>(bytes));
}

int64_t BufferPool::bytes() const noexcept {
  const std::lock_guard guard(kept_->mutex);
  return is_meta_ ? kept_->most : kept_->in_use + kept_->free_bytes;
}

void BufferPool::trim() {
  Kept& kept = *kept_;
  const std::lock_guard guard(kept.mutex);
  kept.free.clear();
  kept.free_bytes = 0;
  kept.most = kept.in_use;
  kept.charged.clear();
  if (is_meta_) kept.charged.push_back(std::make_unique<DryBlock>(static_cast<size_t>(kept.most), 0));
}

}  // namespace caravan

#include "caravan/nn/kv_cache.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {

int64_t KvCache::length() const noexcept {
  int64_t least = slots_.empty() ? 0 : context_;
  for (const auto& [name, slot] : slots_) least = std::min(least, slot.length);
  return least;
}

void KvCache::truncate(int64_t length) {
  for (auto& [name, slot] : slots_) slot.length = std::min(slot.length, length);
}

int64_t KvCache::length(const std::string& name) const {
  const auto slot = slots_.find(name);
  return slot == slots_.end() ? 0 : slot->second.length;
}

int64_t KvCache::advance(const std::string& name, int64_t count) {
  Slot& slot = slots_[name];
  if (slot.length + count > context_) {
    throw UsageError({"generate", name,
                      fmt::format("{} positions, but the cache holds {}", slot.length + count, context_), "",
                      "generate fewer tokens, or clear the cache"});
  }
  slot.length += count;
  return slot.length - count;
}

std::pair<at::Tensor, at::Tensor> KvCache::append(const std::string& name, const at::Tensor& key,
                                                  const at::Tensor& value) {
  if (at::GradMode::is_enabled()) {
    throw UsageError(
        {"generate", name, "a cache is used while gradients are recorded", "", "generate under a NoGradGuard"});
  }
  const int64_t batch = key.size(0);
  const int64_t count = key.size(1);
  Slot& slot = slots_[name];
  if (!slot.key.defined()) {
    slot.key = at::empty({batch, key.size(2), context_, key.size(3)}, key.options());
    slot.value = at::empty_like(slot.key);
  }
  if (slot.key.size(0) != batch) {
    throw UsageError({"generate", name, fmt::format("a batch of {}, but the cache holds {}", batch, slot.key.size(0)),
                      "", "clear the cache before another batch"});
  }
  const int64_t first = advance(name, count);
  slot.key.narrow(2, first, count).copy_(key.transpose(1, 2));
  slot.value.narrow(2, first, count).copy_(value.transpose(1, 2));
  return {slot.key.narrow(2, 0, first + count).transpose(1, 2), slot.value.narrow(2, 0, first + count).transpose(1, 2)};
}

}  // namespace caravan

#include "caravan/generate/kv_cache.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/nn/attention/attention.h"

namespace caravan {

KvCache::KvCache(Module& model, int64_t context) : context_(context) {
  for (Module* module : model.modules()) {
    if (dynamic_cast<AttentionCore*>(module) == nullptr) continue;
    // Inside all other hooks, so that it caches the actual inputs of the core.
    hooks_.push_back(module->add_hook([this](Module& core, Tensors inputs, const ForwardContext& of_core,
                                             const Next& next) { return next(append(core.name(), inputs), of_core); }));
  }
}

int64_t KvCache::length() const noexcept {
  int64_t least = slots_.empty() ? 0 : context_;
  for (const auto& [name, slot] : slots_) least = std::min(least, slot.length);
  return least;
}

at::Tensor KvCache::positions(int64_t count) const { return at::arange(length(), length() + count, at::kLong); }

void KvCache::truncate(int64_t length) {
  for (auto& [name, slot] : slots_) slot.length = std::min(slot.length, length);
}

/// {q, k, v} of new positions -> {q, keys, values, order} with those of all positions.
Tensors KvCache::append(const std::string& name, const Tensors& inputs) {
  const auto refuse = [&](std::string fact, const char* action) {
    throw UsageError({"generate", name, std::move(fact), "", action});
  };
  const at::Tensor& key = inputs.at(1);
  const int64_t batch = key.size(0);
  const int64_t count = key.size(1);
  if (at::GradMode::is_enabled())
    refuse("a cache is used while gradients are recorded", "generate under a NoGradGuard");
  Slot& slot = slots_[name];
  if (!slot.key.defined()) {
    slot.key = at::empty({batch, key.size(2), context_, key.size(3)}, key.options());
    slot.value = at::empty_like(slot.key);
  }
  if (slot.key.size(0) != batch) {
    refuse(fmt::format("a batch of {}, but the cache holds {}", batch, slot.key.size(0)),
           "clear the cache before another batch");
  }
  if (slot.length + count > context_) {
    refuse(fmt::format("{} positions, but the cache holds {}", slot.length + count, context_),
           "generate fewer tokens, or clear the cache");
  }
  const int64_t first = slot.length;
  slot.length += count;
  slot.key.narrow(2, first, count).copy_(key.transpose(1, 2));
  slot.value.narrow(2, first, count).copy_(inputs.at(2).transpose(1, 2));
  return {inputs.at(0), slot.key.narrow(2, 0, slot.length).transpose(1, 2),
          slot.value.narrow(2, 0, slot.length).transpose(1, 2),
          at::arange(first, slot.length, key.options().dtype(at::kLong))};
}

}  // namespace caravan

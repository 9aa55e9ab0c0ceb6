#include "caravan/engine/flat/weight_versions.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/engine/flat/unsharded.h"

namespace caravan {

WeightVersions::WeightVersions(FlatState& state, at::ScalarType dtype, int batch)
    : state_(state), dtype_(dtype), batch_(batch) {
  renew();
}

WeightVersions::~WeightVersions() {
  for (const Slot& slot : state_.layout.slots()) {
    if (!slot.parameter->unsharded().is_meta())
      take_away(slot.parameter->unsharded(), "[parameter] its engine is gone");
  }
}

void WeightVersions::renew() {
  const int64_t now = state_.version();
  if (!versions_.empty() && now == state_version_) return;
  const at::NoGradGuard no_grad;
  const MemoryKindScope kind(MemoryKind::buffers);
  state_version_ = now;
  Version version{.buffers = std::exchange(spare_, {})};
  for (const Bucket& bucket : state_.layout.buckets()) {
    const auto index = static_cast<size_t>(bucket.index);
    if (version.buffers.size() <= index) version.buffers.resize(index + 1);
    at::Tensor& buffer = version.buffers[index];
    if (!buffer.defined()) buffer = at::empty({bucket.unsharded_count}, state_.values.options().dtype(dtype_));
    buffer.copy_(state_.values.narrow(bucket.sharded_offset, bucket.sharded_count));
  }
  const int64_t number = versions_.empty() ? 0 : newest() + 1;
  versions_.emplace(number, std::move(version));
  point_to(number);
  drop_unused();
}

void WeightVersions::point_to(int64_t number) {
  if (std::exchange(current_, number) == number) return;
  const Version& version = versions_.at(number);
  for (const Bucket& bucket : state_.layout.buckets()) {
    point_leaves(state_, bucket, version.buffers[static_cast<size_t>(bucket.index)]);
    for (size_t i = 0; i < bucket.num_slots; ++i)
      state_.layout.slots()[bucket.first_slot + i].parameter->unsharded_changed();
  }
}

void WeightVersions::begin_step() {
  of_micro_batch_.clear();  // left by a step that failed
  for (auto& [number, version] : versions_) version.num_users = 0;
  renew();
  first_ = newest();
  use_newest();
  drop_unused();
}

void WeightVersions::begin(int micro_batch) {
  point_to(batch_ == 0 ? newest() : first_ + std::max(0, micro_batch / batch_ - 1));
  ++versions_.at(current_).num_users;
  of_micro_batch_[micro_batch] = current_;
}

void WeightVersions::use(int micro_batch) { point_to(of_micro_batch_.at(micro_batch)); }

void WeightVersions::release(int micro_batch) {
  const auto found = of_micro_batch_.find(micro_batch);
  --versions_.at(found->second).num_users;
  of_micro_batch_.erase(found);
  use_newest();
  drop_unused();
}

void WeightVersions::drop_unused() {
  const int64_t kept = batch_ == 0 ? newest() : std::max(first_, newest() - 1);
  for (auto version = versions_.begin(); version->first < kept;) {
    if (version->second.num_users > 0) {
      ++version;
      continue;
    }
    spare_ = std::move(version->second.buffers);
    version = versions_.erase(version);
  }
}

uint64_t WeightVersions::hash() const {
  ContentHasher hasher;
  for (const at::Tensor& buffer : versions_.at(current_).buffers) {
    if (!buffer.defined() || buffer.is_meta()) continue;
    hasher.update({static_cast<const std::byte*>(buffer.const_data_ptr()), static_cast<size_t>(buffer.nbytes())});
  }
  return hasher.value().low;
}

int64_t WeightVersions::bytes() const noexcept {
  int64_t bytes = 0;
  const auto add = [&](const std::vector<at::Tensor>& buffers) {
    for (const at::Tensor& buffer : buffers) bytes += buffer.defined() ? static_cast<int64_t>(buffer.nbytes()) : 0;
  };
  add(spare_);
  for (const auto& [number, version] : versions_) add(version.buffers);
  return bytes;
}

}  // namespace caravan

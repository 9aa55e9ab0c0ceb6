#include "caravan/engine/flat/unsharded.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/engine/groups.h"

namespace caravan {
namespace {

void point_to(const at::Tensor& tensor, void* memory) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->clear_data_ptr_access_error_msg_();
  storage->set_data_ptr_noswap(c10::DataPtr(memory, at::kCPU));
}

}  // namespace

at::Tensor without_memory(const std::vector<int64_t>& shape, at::TensorOptions options) {
  return at::for_blob(nullptr, shape).options(options).target_device(options.device()).make_tensor();
}

void take_away(const at::Tensor& tensor, const std::string& reason) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, at::kCPU));
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(reason);
}

void point_leaves(const FlatState& state, const Bucket& bucket, const at::Tensor& buffer) {
  if (buffer.is_meta()) return;
  auto* base = static_cast<std::byte*>(buffer.data_ptr());
  for (size_t i = 0; i < bucket.num_slots; ++i) {
    const Slot& slot = state.layout.slots()[bucket.first_slot + i];
    point_to(slot.parameter->unsharded(), base + slot.unsharded_offset * static_cast<int64_t>(buffer.element_size()));
  }
}

UnshardedParameters::UnshardedParameters(FlatState& state, const Strategy& strategy, BufferPool& pool,
                                         TransferQueue& transfers)
    : state_(state),
      strategy_(strategy),
      pool_(pool),
      transfers_(transfers),
      groups_(state.layout.units().groups.size()) {
  const at::NoGradGuard no_grad;
  dtype_ = strategy.compute_dtype == at::kFloat ? state.values.scalar_type() : strategy.compute_dtype;
  for (const Slot& slot : state.layout.slots()) {
    const Bucket& bucket = state.layout.buckets()[static_cast<size_t>(slot.bucket)];
    make_leaf(slot, bucket);
    storages_.push_back(slot.parameter->unsharded().storage().unsafeGetStorageImpl());
    if (!bucket.is_in_place()) groups_[static_cast<size_t>(bucket.group)].is_gathered = true;
  }
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group].is_gathered) free(static_cast<int>(group));
  }
}

UnshardedParameters::~UnshardedParameters() {
  for (const Bucket& bucket : state_.layout.buckets()) {
    if (!bucket.is_in_place()) take_memory(bucket);
  }
}

/// The parameter's present tensor becomes the unsharded one; the sharded one is the same or a separate tensor.
void UnshardedParameters::make_leaf(const Slot& slot, const Bucket& bucket) {
  Parameter& parameter = *slot.parameter;
  const ParameterLayouts& layouts = layouts_of(strategy_, parameter);
  const at::Tensor values = state_.layout.view(state_.values, parameter).detach();
  const bool is_one = bucket.is_in_place() && dtype_ == state_.values.scalar_type() && !strategy_.stashes_weights();
  at::Tensor memory = values;
  if (!bucket.is_in_place() || strategy_.stashes_weights()) {
    memory = without_memory(slot.unsharded_shape, values.options().dtype(dtype_));
  } else if (!is_one) {
    memory = state_.layout.view(state_.copies, parameter).detach();
  }
  at::Tensor leaf = parameter.unsharded();
  if (leaf.defined()) {
    leaf.set_data(memory);
  } else {
    leaf = memory;
  }
  leaf.set_requires_grad(parameter.requires_grad());
  parameter.set_sharded(is_one ? leaf : values, layouts.sharded);
  if (!is_one) values.set_requires_grad(false);
  parameter.set_unsharded(leaf, layouts.unsharded);
}

void UnshardedParameters::check_memory() const {
  for (size_t i = 0; i < storages_.size(); ++i) {
    const Parameter& parameter = *state_.layout.slots()[i].parameter;
    if (parameter.unsharded().storage().unsafeGetStorageImpl() == storages_[i]) continue;
    throw UsageError({strategy_.name, parameter.name(), "has been given other memory", "",
                      "load and convert the module before it is wrapped; afterwards copy into engine.parameters()"});
  }
}

at::Tensor UnshardedParameters::sharded(const Bucket& bucket) const {
  return state_.values.narrow(bucket.sharded_offset, bucket.sharded_count);
}

void UnshardedParameters::copy(const Bucket& bucket) {
  state_.copies.narrow(bucket.sharded_offset, bucket.sharded_count).copy_(sharded(bucket));
}

void UnshardedParameters::tell_change(const Bucket& bucket) {
  for (size_t i = 0; i < bucket.num_slots; ++i)
    state_.layout.slots()[bucket.first_slot + i].parameter->unsharded_changed();
}

void UnshardedParameters::refresh() {
  const int64_t version = state_.values.is_meta() ? version_ + 1 : state_.version();
  if (version == version_ && state_.is_versioned) return;
  version_ = version;
  const at::NoGradGuard no_grad;
  const bool has_copies = dtype_ != state_.values.scalar_type() && !strategy_.stashes_weights();
  const bool has_trained = state_.has_copied(/*is_trained=*/true), has_frozen = state_.has_copied(/*is_trained=*/false);
  for (const Bucket& bucket : state_.layout.buckets()) {
    const bool is_copied = bucket.is_in_place() || (bucket.keeps_leaf && !bucket.keeps_version);
    const bool is_fresh = bucket.is_trained ? has_trained : has_frozen;
    if (has_copies && !is_fresh && is_copied) copy(bucket);
    if (bucket.is_in_place()) tell_change(bucket);
  }
  state_.copied_versions = {version, version};
}

TransferQueue::Ticket UnshardedParameters::fill(const Bucket& bucket, const at::Tensor& buffer) {
  // This rank's part, then one gather after another, each into the part left by the axes that are still cut.
  std::vector<std::pair<int64_t, int64_t>> parts;  // offset and count before each cell
  int64_t offset = 0;
  for (auto cell = bucket.fill.rbegin(); cell != bucket.fill.rend(); ++cell) {
    offset += cell->before();
    parts.insert(parts.begin(), {offset, cell->own()});
  }
  if (!bucket.keeps_leaf || bucket.keeps_version)
    buffer.narrow(0, bucket.own_offset, bucket.sharded_count).copy_(sharded(bucket));
  const std::string& what = state_.layout.units().groups[static_cast<size_t>(bucket.group)].name;
  TransferStages stages;
  for (size_t i = 0; i < bucket.fill.size(); ++i) {
    const FlatCell& cell = bucket.fill[i];
    if (cell.whole() == 0) continue;  // the owner of another axis has all of it
    const int64_t begin = parts[i].first - cell.before();
    const at::Tensor in = buffer.narrow(0, parts[i].first, parts[i].second);
    const at::Tensor out = buffer.narrow(0, begin, cell.whole());
    stages.add([&cell, in, out, &what] { return start(cell, in, out, what); });
  }
  return transfers_.add(std::move(stages));
}

void UnshardedParameters::gather(int group) {
  Group& own = groups_[static_cast<size_t>(group)];
  if (own.is_there) return;
  const at::NoGradGuard no_grad;
  own.is_there = true;
  for (const Bucket& bucket : state_.layout.buckets()) {
    if (bucket.group != group || bucket.is_in_place()) continue;
    const at::Tensor& kept = state_.kept_leaves[static_cast<size_t>(bucket.index)];
    own.buffers.push_back(kept.defined() ? kept : pool_.take(bucket.unsharded_count, dtype_));
    if (exchange_ != nullptr) {
      exchange_->pull(bucket);
    } else {
      own.transfers.push_back(fill(bucket, own.buffers.back()));
    }
    point_leaves(state_, bucket, own.buffers.back());
    tell_change(bucket);
  }
}

void UnshardedParameters::wait(int group) {
  Group& own = groups_[static_cast<size_t>(group)];
  for (const TransferQueue::Ticket& transfer : own.transfers) transfers_.wait(transfer);
  own.transfers.clear();
}

void UnshardedParameters::take_memory(const Bucket& bucket) {
  tell_change(bucket);
  if (state_.values.is_meta()) return;
  const std::string& unit = state_.layout.units().groups[static_cast<size_t>(bucket.group)].name;
  for (size_t i = 0; i < bucket.num_slots; ++i) {
    const Parameter& parameter = *state_.layout.slots()[bucket.first_slot + i].parameter;
    take_away(parameter.unsharded(),
              fmt::format("[parameter] {}: is read while it is sharded: unit '{}' is not running. "
                          "do: use it only in the forward of its unit, or read its shard",
                          parameter.name(), unit));
  }
}

void UnshardedParameters::free(int group) {
  wait(group);
  Group& own = groups_[static_cast<size_t>(group)];
  for (const Bucket& bucket : state_.layout.buckets()) {
    if (bucket.group == group && !bucket.is_in_place()) take_memory(bucket);
  }
  own.buffers.clear();
  own.is_there = false;
}

}  // namespace caravan

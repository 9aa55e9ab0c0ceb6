#include "caravan/engine/flat/unsharded.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/base/trace/trace.h"
#include "caravan/engine/groups.h"

namespace caravan {
namespace {

void point_to(const at::Tensor& tensor, void* memory) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->clear_data_ptr_access_error_msg_();
  storage->set_data_ptr_noswap(c10::DataPtr(memory, at::kCPU));
}

}  // namespace

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
      is_filled_(state.layout.buckets().size(), false),
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
  for (Group& group : groups_) {
    for (const Event& load : group.loads) load.settle();  // Tiers::check throws their errors
  }
  for (const Bucket& bucket : state_.layout.buckets()) {
    if (!bucket.is_in_place()) take_memory(bucket);
  }
}

/// The parameter's present tensor becomes the unsharded one; the sharded one is the same or a separate tensor.
void UnshardedParameters::make_leaf(const Slot& slot, const Bucket& bucket) {
  Parameter& parameter = *slot.parameter;
  const ParameterLayouts& layouts = layouts_of(strategy_, parameter);
  const at::Tensor values = sharded_of(slot);
  const bool is_one = bucket.is_in_place() && dtype_ == state_.values.scalar_type() && !strategy_.stashes_weights() &&
                      !state_.copies.has(bucket.sharded_offset);
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
    throw UsageError(
        {strategy_.name, parameter.name(), "has been given other memory", "",
         "load and convert the module before it is wrapped; afterwards copy into engine.parameters(), on every rank"});
  }
}

at::Tensor UnshardedParameters::sharded_of(const Slot& slot) const {
  if (!state_.values.is_on_disk()) return state_.layout.view(state_.values, *slot.parameter).detach();
  return without_memory(
      slot.sharded_shape, state_.values.options(),
      fmt::format("[parameter] {}: rests on disk. do: read it from a checkpoint, update it with an optimizer of "
                  "this library (caravan/optim/optimizer.h), or offload to the host",
                  slot.parameter->name()));
}

at::Tensor UnshardedParameters::source(const Bucket& bucket) const {
  return state_.source(bucket).narrow(bucket.sharded_offset, bucket.sharded_count);
}

void UnshardedParameters::copy(const Bucket& bucket) {
  if (!strategy_.is_offloaded()) {
    state_.copies.narrow(bucket.sharded_offset, bucket.sharded_count)
        .copy_(state_.values.narrow(bucket.sharded_offset, bucket.sharded_count));
    return;
  }
  const HostAccess access(*strategy_.tiers);
  FlatMemory::for_each_part(bucket.sharded_offset, bucket.sharded_count, [&](int64_t offset, int64_t count) {
    state_.copies.write(offset, state_.values.read(offset, count).to(dtype_));
  });
}

void UnshardedParameters::tell_change(const Bucket& bucket) {
  for (size_t i = 0; i < bucket.num_slots; ++i)
    state_.layout.slots()[bucket.first_slot + i].parameter->unsharded_changed();
}

void UnshardedParameters::refresh(bool may_lag) {
  // With tiers a rehearsal counts copies, so it makes them when a run does.
  const bool is_new = state_.values.is_meta() && state_.tiers == nullptr;
  const int64_t version = is_new ? version_ + 1 : state_.version();
  const bool lags = state_.lags();
  if (version == version_ && state_.is_versioned && (may_lag || !lags)) return;
  version_ = version;
  const at::NoGradGuard no_grad;
  const bool stays_behind = may_lag && lags;
  const bool has_trained = stays_behind || state_.has_copied(/*is_trained=*/true);
  // Nothing changes the frozen values of a rehearsal.
  const bool has_frozen = is_new ? state_.is_versioned && version > 0 : state_.has_copied(/*is_trained=*/false);
  if (!has_frozen) is_filled_.assign(is_filled_.size(), false);
  if (lags) count_path(stays_behind ? "parameters without a delayed update" : "parameters with a delayed update");
  for (const Bucket& bucket : state_.layout.buckets()) {
    const bool is_fresh = bucket.is_trained ? has_trained : has_frozen;
    if (!is_fresh && state_.copies.has(bucket.sharded_offset)) copy(bucket);
    if (bucket.is_in_place()) tell_change(bucket);
  }
  state_.copied_versions.frozen = version;
  if (stays_behind) return;
  state_.copied_versions.trained = version;
  state_.copied_versions.lagging = -1;
}

TransferQueue::Ticket UnshardedParameters::fill(const Bucket& bucket, const at::Tensor& buffer) {
  // This rank's part, then one gather after another, each into the part left by the axes that are still cut.
  std::vector<std::pair<int64_t, int64_t>> parts;  // offset and count before each cell
  int64_t offset = 0;
  for (auto cell = bucket.fill.rbegin(); cell != bucket.fill.rend(); ++cell) {
    offset += cell->before();
    parts.insert(parts.begin(), {offset, cell->own()});
  }
  if (!bucket.is_fetched && (!bucket.keeps_leaf || bucket.keeps_version))
    buffer.narrow(0, bucket.own_offset, bucket.sharded_count).copy_(source(bucket));
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

at::Tensor UnshardedParameters::take_buffer(const Bucket& bucket) {
  const at::Tensor& kept = state_.kept_leaves[static_cast<size_t>(bucket.index)];
  return kept.defined() ? kept : pool_.take(bucket.unsharded_count, dtype_, bucket.whole_count);
}

void UnshardedParameters::load(Group& group, const Bucket& bucket, const at::Tensor& to) {
  if (bucket.sharded_count == 0) return;
  const FlatMemory::Piece& piece = state_.source(bucket).piece(bucket.sharded_offset, bucket.sharded_count);
  count_path("parameters loaded from " + std::string(name(piece.block->tier())));
  group.loads.push_back(piece.block->load(to, state_.layout.units().groups[static_cast<size_t>(bucket.group)].name));
}

void UnshardedParameters::fetch(int group) {
  Group& own = groups_[static_cast<size_t>(group)];
  const bool is_chunk = state_.layout.units().groups[static_cast<size_t>(group)].is_chunk;
  if (own.is_fetched || (own.is_there && !is_chunk)) return;
  own.is_fetched = true;
  for (const Bucket& bucket : state_.layout.buckets()) {
    if (bucket.group != group || !bucket.is_fetched) continue;
    if (is_chunk) {
      own.slots.push_back(pool_.take(bucket.slot_count, dtype_));
      load(own, bucket, own.slots.back().narrow(0, 0, bucket.sharded_count));
      continue;
    }
    own.buffers.push_back(take_buffer(bucket));
    load(own, bucket, own.buffers.back().narrow(0, bucket.own_offset, bucket.sharded_count));
  }
}

/// The buffer of a chunk: the slot itself if it has all of it.
at::Tensor UnshardedParameters::from_slot(Group& group, const Bucket& bucket, const at::Tensor& slot) {
  if (bucket.fill.empty()) return slot.narrow(0, 0, bucket.unsharded_count);
  const at::Tensor buffer = take_buffer(bucket);
  finish_loads(group);
  if (!buffer.is_meta())
    buffer.narrow(0, bucket.own_offset, bucket.sharded_count).copy_(slot.narrow(0, 0, bucket.sharded_count));
  return buffer;
}

void UnshardedParameters::drop(int group) {
  Group& own = groups_[static_cast<size_t>(group)];
  finish_loads(own);
  own.slots.clear();
  own.is_fetched = false;
}

void UnshardedParameters::finish_loads(Group& group) {
  if (group.loads.empty()) return;
  const TraceSpan span(TraceLog::kWait, "load");
  for (const Event& load : group.loads) load.wait();
  group.loads.clear();
}

void UnshardedParameters::gather(int group) {
  Group& own = groups_[static_cast<size_t>(group)];
  if (own.is_there) return;
  const at::NoGradGuard no_grad;
  fetch(group);
  own.is_there = true;
  size_t index = 0;
  for (const Bucket& bucket : state_.layout.buckets()) {
    if (bucket.group != group || bucket.is_in_place()) continue;
    state_.source(bucket).wait(bucket.sharded_offset);
    if (!own.slots.empty()) {
      own.buffers.push_back(from_slot(own, bucket, own.slots[index]));
    } else if (!bucket.is_fetched) {
      own.buffers.push_back(take_buffer(bucket));
    }
    const at::Tensor& buffer = own.buffers[index++];
    if (exchange_ != nullptr) {
      exchange_->pull(bucket);
    } else if (is_filled_[static_cast<size_t>(bucket.index)]) {
      count_path("frozen parameters that stay gathered");
    } else if (!bucket.fill.empty()) {
      finish_loads(own);
      own.transfers.push_back(fill(bucket, buffer));
      is_filled_[static_cast<size_t>(bucket.index)] = bucket.stays_gathered();
    }
    point_leaves(state_, bucket, buffer);
    tell_change(bucket);
  }
}

void UnshardedParameters::wait(int group) {
  Group& own = groups_[static_cast<size_t>(group)];
  // A sweep may still be writing what is read in place.
  for (const Bucket& bucket : state_.layout.buckets()) {
    if (state_.tiers != nullptr && bucket.group == group) state_.source(bucket).wait(bucket.sharded_offset);
  }
  finish_loads(own);
  for (const TransferQueue::Ticket& transfer : own.transfers) transfers_.wait(transfer);
  own.transfers.clear();
}

void UnshardedParameters::take_memory(const Bucket& bucket) {
  tell_change(bucket);
  if (state_.values.is_meta()) return;
  const Units::Group& about = state_.layout.units().groups[static_cast<size_t>(bucket.group)];
  const std::string fact =
      about.is_chunk ? about.name + " is not gathered" : "unit '" + about.name + "' is not running";
  for (size_t i = 0; i < bucket.num_slots; ++i) {
    const Parameter& parameter = *state_.layout.slots()[bucket.first_slot + i].parameter;
    take_away(parameter.unsharded(), fmt::format("[parameter] {}: is read while it is sharded: {}. "
                                                 "do: use it only in the forward of its unit, or read its shard",
                                                 parameter.name(), fact));
  }
}

void UnshardedParameters::free(int group, bool keeps_slot) {
  wait(group);
  Group& own = groups_[static_cast<size_t>(group)];
  for (const Bucket& bucket : state_.layout.buckets()) {
    if (bucket.group == group && !bucket.is_in_place()) take_memory(bucket);
  }
  own.buffers.clear();
  own.is_there = false;
  if (keeps_slot && own.is_fetched && !own.slots.empty()) return;
  own.slots.clear();
  own.is_fetched = false;
}

}  // namespace caravan

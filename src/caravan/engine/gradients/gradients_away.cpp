#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "caravan/base/trace/path_log.h"
#include "caravan/base/trace/trace.h"
#include "caravan/engine/gradients/gradient_sums.h"
#include "caravan/module/mixed_add.h"

// Gradients that rest on host or disk: sums are on the device while something adds to them, and go where gradients
// rest once they are reduced.

namespace caravan {
void GradientSums::finish_loads(OfBucket& own) const {
  if (own.loads.empty()) return;
  const TraceSpan span(TraceLog::kWait, "load");
  for (const Event& load : own.loads) load.wait();
  own.loads.clear();
}

void GradientSums::need_here(const Bucket& bucket) {
  OfBucket& own = buckets_[static_cast<size_t>(bucket.index)];
  // The table does not know of gradients that a loss deposits in its forward.
  if (own.is_evicted) fetch(bucket.group);
  finish_loads(own);
}

const FlatMemory::Piece* GradientSums::piece_of(const Bucket& bucket) const {
  if (bucket.sharded_count == 0) return nullptr;
  return &state_.gradients.piece(bucket.sharded_offset, bucket.sharded_count);
}

void GradientSums::evict(int group) {
  const std::string& what = state_.layout.units().groups[static_cast<size_t>(group)].name;
  const MemoryKindScope kind(MemoryKind::gradients);
  const auto store = [&](TierBlock& block, at::Tensor& tensor) {
    if (!block) block = strategy_.tiers->block(strategy_.gradients_tier, static_cast<int64_t>(tensor.nbytes()));
    block.store(tensor, what);
    tensor = at::Tensor();
  };
  for (const Bucket& bucket : state_.layout.buckets()) {
    if (bucket.group != group || !bucket.gradient_is_away) continue;
    OfBucket& own = buckets_[static_cast<size_t>(bucket.index)];
    finish_loads(own);
    // Sums that are not rounded into the kept ones yet stay, with these.
    if (own.is_evicted || (bucket.stays() && rounds_ && own.sums.defined())) continue;
    at::Tensor& sums = bucket.stays() ? own.kept : own.sums;
    if (sums.defined()) {
      count_path("gradients moved between micro-batches");
      store(sums_away_[bucket.index], sums);
      own.has_stored = true;
    }
    own.sums = at::Tensor();
    own.is_evicted = true;
    for (size_t i = 0; i < bucket.num_slots; ++i) {
      OfSlot& slot = slots_[bucket.first_slot + i];
      if (!slot.derived.defined()) continue;
      store(derived_away_[bucket.first_slot + i], slot.derived);
      slot.is_derived_away = true;
    }
  }
}

void GradientSums::fetch(int group) {
  const std::string& what = state_.layout.units().groups[static_cast<size_t>(group)].name;
  for (const Bucket& bucket : state_.layout.buckets()) {
    if (bucket.group != group || !bucket.gradient_is_away) continue;
    OfBucket& own = buckets_[static_cast<size_t>(bucket.index)];
    if (!own.is_evicted) continue;
    own.is_evicted = false;
    if (own.has_stored) {
      const bool is_kept = bucket.stays();
      const at::ScalarType type = is_kept ? state_.gradients.scalar_type() : sum_dtype_;
      const at::Tensor sums = pool_.take(bucket.unsharded_count, type, bucket.whole_count);
      own.loads.push_back(sums_away_.at(bucket.index).load(sums, what));
      (is_kept ? own.kept : own.sums) = sums;
      own.has_stored = false;
    }
    for (size_t i = 0; i < bucket.num_slots; ++i) {
      OfSlot& slot = slots_[bucket.first_slot + i];
      if (!slot.is_derived_away) continue;
      const at::IntArrayRef shape = state_.layout.slots()[bucket.first_slot + i].parameter->compute_shape();
      TierBlock& block = derived_away_.at(bucket.first_slot + i);
      const at::Tensor flat =
          pool_.take(block.bytes() / static_cast<int64_t>(c10::elementSize(sum_dtype_)), sum_dtype_);
      own.loads.push_back(block.load(flat, what));
      slot.derived = flat.view(shape);
      slot.is_derived_away = false;
    }
  }
}

void GradientSums::add_away(const Bucket& bucket, const at::Tensor& target, bool adds) {
  const FlatMemory::Piece* piece = piece_of(bucket);
  if (piece == nullptr) return;
  const std::string& what = state_.layout.units().groups[static_cast<size_t>(bucket.group)].name;
  const at::ScalarType type = state_.gradients.scalar_type();
  if (!adds) {
    at::Tensor rounded = target;
    if (type != target.scalar_type()) rounded = pool_.take(target.numel(), type).copy_(target);
    piece->block->store(rounded, what);
    return;
  }
  count_path("gradients added up away from the device");
  const auto add = [type, from = target.scalar_type()](void* ours, const void* theirs, int64_t count) {
    const at::NoGradGuard no_grad;
    add_mixed(at::from_blob(ours, {count}, at::TensorOptions(type)),
              at::from_blob(const_cast<void*>(theirs), {count}, at::TensorOptions(from)));
  };
  piece->block->add(target, static_cast<int64_t>(c10::elementSize(type)), add, what);
}

TransferQueue::Ticket GradientSums::start_away(const Bucket& bucket, bool is_last) {
  OfBucket& own = buckets_[static_cast<size_t>(bucket.index)];
  const bool adds = own.is_reduced;
  count_path(adds ? "gradients added to shards" : "gradients written to shards");
  const at::Tensor local = bucket.stays() && rounds_ ? kept(bucket) : sums_of(bucket);
  const at::Tensor sums = bucket.reduce.empty() ? local : on_wire(local);
  own.sums = own.kept = at::Tensor();  // now owned by the transfer
  const auto rest = after_scatters(bucket);
  const at::Tensor target = rest != bucket.reduce.begin() ? pool_.take(bucket.sharded_count, wire_dtype_) : sums;
  const std::string& what = state_.layout.units().groups[static_cast<size_t>(bucket.group)].name;
  TransferStages stages;
  add_scatters(stages, bucket, sums, target);
  if (!is_last) {
    stages.add_local([this, &bucket, target, adds] { add_away(bucket, target, adds); });
    return transfers_.add(std::move(stages));
  }
  const at::ScalarType type = state_.gradients.scalar_type();
  own.result = !adds && type == target.scalar_type() ? target : pool_.take(bucket.sharded_count, type);
  if (adds && bucket.sharded_count > 0) own.loads.push_back(piece_of(bucket)->block->load(own.result, what));
  stages.add_local([this, &own, target, adds] {
    finish_loads(own);
    if (adds) {
      add_mixed(own.result, target);
    } else if (!own.result.is_same(target)) {
      own.result.copy_(target);
    }
  });
  for (auto cell = rest; cell != bucket.reduce.end(); ++cell) reduce_sharded(stages, *cell, bucket, own.result);
  stages.add_local([this, &bucket] { finish_away(bucket); });
  return transfers_.add(std::move(stages));
}

void GradientSums::finish_away(const Bucket& bucket) {
  OfBucket& own = buckets_[static_cast<size_t>(bucket.index)];
  if (watch_) {
    for (size_t i = 0; i < bucket.num_slots; ++i) {
      const Slot& slot = state_.layout.slots()[bucket.first_slot + i];
      const int64_t at = slot.sharded_offset - bucket.sharded_offset;
      watch_(slot, own.result.narrow(0, at, slot.sharded_count()).view(slot.sharded_shape));
    }
  }
  const FlatMemory::Piece* piece = piece_of(bucket);
  if (piece != nullptr && (!strategy_.steps_early || keeps_stepped_)) {
    count_path("gradients stored on " + std::string(name(piece->block->tier())));
    piece->block->store(own.result, state_.layout.units().groups[static_cast<size_t>(bucket.group)].name);
  }
  if (!strategy_.steps_early) own.result = at::Tensor();
}

at::Tensor GradientSums::result(const Bucket& bucket) {
  OfBucket& own = buckets_[static_cast<size_t>(bucket.index)];
  transfers_.wait(own.last);
  if (own.result.defined()) return own.result;
  return at::zeros({bucket.sharded_count}, state_.gradients.options());
}

void GradientSums::release(const Bucket& bucket) {
  transfers_.wait(buckets_[static_cast<size_t>(bucket.index)].last);  // also where this rank keeps nothing of it
  buckets_[static_cast<size_t>(bucket.index)].result = at::Tensor();
}

void GradientSums::clear_away(const Bucket& bucket) {
  if (bucket.sharded_count == 0) return;
  const HostAccess access(*strategy_.tiers);
  FlatMemory::for_each_part(bucket.sharded_offset, bucket.sharded_count, [&](int64_t offset, int64_t count) {
    state_.gradients.write(offset, at::zeros({count}, state_.gradients.options()));
  });
}

}  // namespace caravan

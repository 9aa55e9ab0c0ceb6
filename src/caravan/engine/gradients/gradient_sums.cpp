#include "caravan/engine/gradients/gradient_sums.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"

namespace caravan {
namespace {

/// The maximum number of reductions in flight; with the sum being accumulated, three full buffers.
constexpr size_t kMostInFlight = 2;

}  // namespace

GradientSums::GradientSums(FlatState& state, const Strategy& strategy, BufferPool& pool, TransferQueue& transfers)
    : state_(state),
      strategy_(strategy),
      pool_(pool),
      transfers_(transfers),
      sum_dtype_(state.values.scalar_type()),
      wire_dtype_(strategy.reduce_dtype.value_or(state.gradients.scalar_type())),
      rounds_(state.gradients.scalar_type() != sum_dtype_),
      loan_(state),
      slots_(state.layout.slots().size()),
      buckets_(state.layout.buckets().size()) {}

void GradientSums::begin_step() {
  for (OfSlot& slot : slots_) {
    const at::Tensor in_place = slot.in_place;
    slot = {};
    slot.in_place = in_place;
  }
  for (OfBucket& bucket : buckets_) bucket = {};
  in_flight_.clear();
  has_older_ = false;
  run_ = nullptr;
  run_count_ = 0;
  is_first_run_ = true;
  loan_.lend();
}

void GradientSums::finish_older() {
  if (!std::exchange(has_older_, false)) return;
  for (const TransferQueue::Ticket& reduction : std::exchange(in_flight_, {})) transfers_.wait(reduction);
}

at::Tensor& GradientSums::sums_of(const Bucket& bucket) {
  need_here(bucket);
  at::Tensor& sums = buckets_[static_cast<size_t>(bucket.index)].sums;
  if (sums.defined()) return sums;
  if (sums_in_place(bucket)) return sums = kept(bucket);
  finish_older();
  sums = pool_.take(bucket.unsharded_count, sum_dtype_, bucket.whole_count);
  clear_gaps(bucket, sums);
  return sums;
}

void GradientSums::clear_gaps(const Bucket& bucket, const at::Tensor& sums) const {
  for (size_t i = 0; i < bucket.num_slots; ++i) {  // gaps are summed too
    const Slot& slot = state_.layout.slots()[bucket.first_slot + i];
    const int64_t end = slot.unsharded_offset + slot.unsharded_count();
    const int64_t next = i + 1 < bucket.num_slots ? state_.layout.slots()[bucket.first_slot + i + 1].unsharded_offset
                                                  : bucket.unsharded_count;
    if (next > end) sums.narrow(0, end, next - end).zero_();
  }
}

at::Tensor GradientSums::kept(const Bucket& bucket) {
  if (bucket.gradient_is_away) {
    need_here(bucket);
    OfBucket& own = buckets_[static_cast<size_t>(bucket.index)];
    if (own.kept.defined()) return own.kept;
    finish_older();
    own.kept = pool_.take(bucket.unsharded_count, state_.gradients.scalar_type(), bucket.whole_count);
    clear_gaps(bucket, own.kept);
    return own.kept;
  }
  wait_for_update(bucket);
  if (bucket.keeps_gradient) return state_.kept_sums[static_cast<size_t>(bucket.index)];
  return sharded(bucket);
}

at::Tensor GradientSums::sharded(const Bucket& bucket) {
  at::Tensor gradients = state_.gradients.narrow(bucket.sharded_offset, bucket.sharded_count);
  if (loan_.take_back(bucket)) clear_gaps(bucket, gradients);
  return gradients;
}

void GradientSums::wait_for_update(const Bucket& bucket) const {
  if (strategy_.delay_after && !bucket.gradient_is_away) state_.gradients.wait(bucket.sharded_offset);
}

at::Tensor GradientSums::leaf_sum(const Slot& slot) {
  const Bucket& bucket = state_.layout.buckets()[static_cast<size_t>(slot.bucket)];
  const auto make = [&] {
    return sums_of(bucket).narrow(0, slot.unsharded_offset, slot.unsharded_count()).view(slot.unsharded_shape);
  };
  if (!sums_in_place(bucket) || bucket.gradient_is_away) return make();
  wait_for_update(bucket);
  at::Tensor& once = slots_[state_.layout.index(*slot.parameter)].in_place;
  if (!once.defined() || loan_.is_lent(bucket)) once = make();
  return once;
}

void GradientSums::refuse_late(const Parameter& parameter) const {
  throw UsageError({strategy_.name, parameter.name(), "a gradient arrives after it was reduced", "",
                    "call begin_step() before the next step, with the number of its backward passes"});
}

GradientSink::Sum GradientSums::sum_of(Parameter& parameter) {
  const size_t index = state_.layout.index(parameter);
  const Slot& slot = state_.layout.slots()[index];
  OfSlot& own = slots_[index];
  if (buckets_[static_cast<size_t>(slot.bucket)].is_reduced &&
      state_.layout.buckets()[static_cast<size_t>(slot.bucket)].stays()) {
    refuse_late(parameter);
  }
  if (!parameter.is_derived()) return {leaf_sum(slot), !own.is_written};
  need_here(state_.layout.buckets()[static_cast<size_t>(slot.bucket)]);
  if (!own.derived.defined()) {
    const at::IntArrayRef shape = parameter.compute_shape();  // not compute(): the unsharded memory may already be
                                                              // freed
    own.derived = pool_.take(c10::multiply_integers(shape), sum_dtype_).view(shape);
  }
  return {own.derived, !own.is_written};
}

void GradientSums::accumulated(Parameter& parameter) {
  OfSlot& own = slots_[state_.layout.index(parameter)];
  own.is_written = own.is_used = true;
  ++own.num_summands;
}

void GradientSums::added_early(const Parameter& parameter) {
  OfSlot& own = slots_[state_.layout.index(parameter)];
  own.is_written = true;
  ++own.num_early;
  ++own.num_summands;
}

void GradientSums::confirmed(const Parameter& parameter) {
  OfSlot& own = slots_[state_.layout.index(parameter)];
  own.is_used = true;
  --own.num_early;
}

void GradientSums::withdrawn(const Parameter& parameter) {
  OfSlot& own = slots_[state_.layout.index(parameter)];
  --own.num_early;
  if (own.num_summands == 1) {  // the sum has no other summands: the next one overwrites it
    own.is_written = false;
    own.num_summands = 0;
  } else {
    own.is_spoilt = true;
  }
}

void GradientSums::check_early() const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].num_early == 0 && !slots_[i].is_spoilt) continue;
    throw UsageError({strategy_.name, state_.layout.slots()[i].parameter->name(),
                      "a loss was computed with gradients in this step and never back-propagated", "",
                      "evaluate under a NoGradGuard, outside of the step or with Phase::evaluate"});
  }
}

void GradientSums::complete(const Slot& slot) {
  OfSlot& own = slots_[state_.layout.index(*slot.parameter)];
  at::Tensor sum = leaf_sum(slot);
  if (slot.parameter->is_derived()) {
    // Even without a gradient: the derivation may communicate, and every rank takes part.
    const MemoryKindScope kind(MemoryKind::buffers);
    if (!own.is_written) own.derived = at::zeros(slot.parameter->compute().sizes(), sum.options());
    sum.copy_(slot.parameter->unsharded_gradient(own.derived));
    own.derived = at::Tensor();
  } else if (!own.is_written) {
    sum.zero_();
  }
  own.is_written = false;
  own.num_summands = 0;
}

void GradientSums::complete(const Bucket& bucket) {
  for (size_t i = 0; i < bucket.num_slots; ++i) complete(state_.layout.slots()[bucket.first_slot + i]);
}

void GradientSums::reduce(int group, bool is_last) {
  const at::NoGradGuard no_grad;
  for (const Bucket& bucket : state_.layout.buckets()) {
    if (bucket.group != group || !bucket.is_trained) continue;
    OfBucket& own = buckets_[static_cast<size_t>(bucket.index)];
    if (sums_in_place(bucket) && !is_last) continue;  // its summands stay unreduced until all have arrived
    if (!bucket.stays() && rounds_ && !is_last && !strategy_.reduces_each_micro_batch) continue;
    complete(bucket);
    if (bucket.stays() && rounds_) {
      fold(bucket);
      if (!is_last) continue;
    }
    if (bucket.reduces_in_place() && !bucket.gradient_is_away) {
      add_to_run(bucket);
    } else if (exchange_ != nullptr) {
      exchange_->push(bucket, sums_of(bucket));
      own.sums = at::Tensor();
    } else {
      transfers_.wait(own.last);  // of an earlier micro-batch, to whose result this one adds
      if (in_flight_.size() == kMostInFlight) {
        transfers_.wait(in_flight_.front());
        in_flight_.pop_front();
      }
      own.last = bucket.gradient_is_away ? start_away(bucket, is_last) : start_reduction(bucket, is_last);
      in_flight_.push_back(own.last);
    }
    own.is_reduced = true;
  }
}

void GradientSums::finish() {
  const at::NoGradGuard no_grad;
  start_run();
  check_early();
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = state_.layout.slots()[i];
    if (!slots_[i].is_written || !buckets_[static_cast<size_t>(slot.bucket)].is_reduced) continue;
    refuse_late(*slot.parameter);
  }
  for (const Bucket& bucket : state_.layout.buckets()) {  // for units that did not run
    if (!bucket.is_trained || buckets_[static_cast<size_t>(bucket.index)].is_reduced) continue;
    if (bucket.gradient_is_away) {
      clear_away(bucket);
    } else {
      sharded(bucket).zero_();
    }
  }
  for (size_t i = 0; i < slots_.size() && !strategy_.find_unused_parameters; ++i) {
    const Slot& slot = state_.layout.slots()[i];
    if (slots_[i].is_used || !slot.parameter->requires_grad() || slot.unsharded_count() == 0) continue;
    transfers_.wait_all();  // what is in flight writes to memory that a later step uses
    throw UsageError({strategy_.name, slot.parameter->name(), "got no gradient in this step", "",
                      "use it in the forward pass, freeze it before wrapping, or set find_unused_parameters"});
  }
  transfers_.wait_all();
}

std::vector<int64_t> GradientSums::used() const {
  std::vector<int64_t> used;
  for (const OfSlot& slot : slots_) used.push_back(slot.is_used ? 1 : 0);
  return used;
}

void GradientSums::set_used(const std::vector<int64_t>& used) {
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].is_used = used[i] != 0;
}

at::Tensor GradientSums::local(const Parameter& parameter) {
  const size_t index = state_.layout.index(parameter);
  if (!slots_[index].is_used) return {};
  return slots_[index].derived.defined() ? slots_[index].derived : leaf_sum(state_.layout.slots()[index]);
}

}  // namespace caravan

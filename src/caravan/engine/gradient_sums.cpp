#include "caravan/engine/gradient_sums.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

/// At most this many reductions are in flight; with the sum that is being added up, three full buffers.
constexpr size_t kMostInFlight = 2;

bool take_the_same_way(const Bucket& a, const Bucket& b) {
  return std::equal(a.reduce.begin(), a.reduce.end(), b.reduce.begin(), b.reduce.end(),
                    [](const FlatCell& x, const FlatCell& y) { return x.axis == y.axis && x.to == y.to; });
}

}  // namespace

GradientSums::GradientSums(FlatState& state, const Strategy& strategy, BufferPool& pool, TransferQueue& transfers)
    : state_(state),
      strategy_(strategy),
      pool_(pool),
      transfers_(transfers),
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
  run_ = nullptr;
  run_count_ = 0;
  is_first_run_ = true;
}

at::Tensor& GradientSums::sums_of(const Bucket& bucket) {
  at::Tensor& sums = buckets_[static_cast<size_t>(bucket.index)].sums;
  if (sums.defined()) return sums;
  if (bucket.reduces_in_place()) {
    sums = state_.gradients.narrow(bucket.rest_offset, bucket.rest_count);
    return sums;
  }
  if (bucket.keeps_gradient) return sums = state_.kept_sums[static_cast<size_t>(bucket.index)];
  sums = pool_.take(bucket.leaf_count, state_.gradients.scalar_type());
  for (size_t i = 0; i < bucket.num_slots; ++i) {  // gaps are summed too
    const Slot& slot = state_.layout.slots()[bucket.first_slot + i];
    const int64_t end = slot.leaf_offset + slot.leaf_count();
    const int64_t next =
        i + 1 < bucket.num_slots ? state_.layout.slots()[bucket.first_slot + i + 1].leaf_offset : bucket.leaf_count;
    sums.narrow(0, end, next - end).zero_();
  }
  return sums;
}

at::Tensor GradientSums::leaf_sum(const Slot& slot) {
  const Bucket& bucket = state_.layout.buckets()[static_cast<size_t>(slot.bucket)];
  const auto make = [&] {
    return sums_of(bucket).narrow(0, slot.leaf_offset, slot.leaf_count()).view(slot.leaf_shape);
  };
  if (!bucket.stays()) return make();
  at::Tensor& once = slots_[state_.layout.index(*slot.parameter)].in_place;
  if (!once.defined()) once = make();
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
  if (!own.derived.defined()) {
    const at::IntArrayRef shape = parameter.compute_shape();  // not compute(): the leaf may be gone by now
    own.derived = pool_.take(c10::multiply_integers(shape), state_.gradients.scalar_type()).view(shape);
  }
  return {own.derived, !own.is_written};
}

void GradientSums::deposited(Parameter& parameter) {
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
  if (own.num_summands == 1) {  // nothing else is in the sum: the next summand overwrites it
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
    // Without deposit too: the derivation may communicate, and every rank takes part.
    if (!own.is_written) own.derived = at::zeros(slot.parameter->compute().sizes(), sum.options());
    sum.copy_(slot.parameter->leaf_gradient(own.derived));
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
    if (bucket.stays() && !is_last) continue;  // its summands stay unreduced until all are there
    complete(bucket);
    if (bucket.reduces_in_place()) {
      add_to_run(bucket);
    } else {
      transfers_.wait(own.last);  // of an earlier micro-batch: this one adds to its result
      if (in_flight_.size() == kMostInFlight) {
        transfers_.wait(in_flight_.front());
        in_flight_.pop_front();
      }
      own.last = transfers_.add(stages_of(bucket, is_last));
      in_flight_.push_back(own.last);
      own.sums = at::Tensor();  // the transfer has it
    }
    own.is_reduced = true;
  }
}

std::vector<TransferQueue::Stage> GradientSums::stages_of(const Bucket& bucket, bool is_last) {
  const OfBucket& own = buckets_[static_cast<size_t>(bucket.index)];
  const at::Tensor sums = sums_of(bucket);
  const at::Tensor at_rest = state_.gradients.narrow(bucket.rest_offset, bucket.rest_count);
  // What accumulates at rest is added there; the first reduction of a step writes.
  const at::Tensor target = own.is_reduced ? pool_.take(bucket.rest_count, sums.scalar_type()) : at_rest;
  const std::string& what = state_.layout.units().groups[static_cast<size_t>(bucket.group)].name;
  const auto is_shard = [](const FlatCell& cell) { return cell.to.is_shard(); };
  const auto last = std::find_if(bucket.reduce.rbegin(), bucket.reduce.rend(), is_shard).base() - 1;
  const auto add = [at_rest, target] {
    at_rest.add_(target);
    return Work();
  };
  std::vector<TransferQueue::Stage> stages;
  int64_t begin = 0;
  int64_t count = bucket.leaf_count;
  for (auto cell = bucket.reduce.begin(); cell != bucket.reduce.end(); ++cell) {
    if (!cell->to.is_shard()) {
      if (cell > last && !is_last) break;  // what adds up at rest is summed over replicas once a step
      const at::Tensor part = cell < last ? sums.narrow(0, begin, count) : at_rest;
      stages.emplace_back([cell = *cell, part, &what] { return start(cell, part, part, what); });
      continue;
    }
    const int64_t whole = cell->whole();
    const at::Tensor in = sums.narrow(0, begin, whole);
    begin += cell->before();
    count = cell->own();
    const at::Tensor out = cell == last ? target : sums.narrow(0, begin, count);
    if (whole > 0) stages.emplace_back([cell = *cell, in, out, &what] { return start(cell, in, out, what); });
    if (cell == last && own.is_reduced) stages.emplace_back(add);
  }
  return stages;
}

void GradientSums::add_to_run(const Bucket& bucket) {
  // By the order of buckets, not by offsets: a rank may hold nothing of one in between.
  const bool follows = run_ != nullptr && bucket.index == run_last_ + 1 && take_the_same_way(*run_, bucket);
  if (!follows) start_run();
  if (run_ == nullptr) run_ = &bucket;
  run_last_ = bucket.index;
  run_count_ = bucket.rest_offset + bucket.rest_count - run_->rest_offset;
  const int64_t enough =
      is_first_run_ ? std::min(strategy_.first_bucket_bytes, strategy_.bucket_bytes) : strategy_.bucket_bytes;
  if (run_count_ * static_cast<int64_t>(c10::elementSize(state_.gradients.scalar_type())) >= enough) start_run();
}

void GradientSums::start_run() {
  if (run_ == nullptr) return;
  const at::Tensor range = state_.gradients.narrow(run_->rest_offset, run_count_);
  const std::string& what = state_.layout.units().groups[static_cast<size_t>(run_->group)].name;
  std::vector<TransferQueue::Stage> stages;
  for (const FlatCell& cell : run_->reduce) {
    stages.emplace_back([&cell, range, &what] { return start(cell, range, range, what); });
  }
  transfers_.add(std::move(stages));
  run_ = nullptr;
  run_count_ = 0;
  is_first_run_ = false;
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
  for (const Bucket& bucket : state_.layout.buckets()) {  // of units that did not run
    if (!bucket.is_trained || buckets_[static_cast<size_t>(bucket.index)].is_reduced) continue;
    state_.gradients.narrow(bucket.rest_offset, bucket.rest_count).zero_();
  }
  for (size_t i = 0; i < slots_.size() && !strategy_.allow_unused; ++i) {
    const Slot& slot = state_.layout.slots()[i];
    if (slots_[i].is_used || !slot.parameter->requires_grad() || slot.leaf_count() == 0) continue;
    throw UsageError({strategy_.name, slot.parameter->name(), "got no gradient in this step", "",
                      "use it in the forward pass, freeze it before wrapping, or set allow_unused"});
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

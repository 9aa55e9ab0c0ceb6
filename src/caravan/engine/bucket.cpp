#include "caravan/engine/bucket.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {

GradientBuckets::GradientBuckets(const FlatState& state, int64_t bucket_bytes, Pay pay)
    : state_(state), pay_(std::move(pay)), arrivals_(state.layout.slots().size()) {
  if (bucket_bytes < 1) {
    throw UsageError(
        {"bucket", "bucket_bytes", fmt::format("{} bytes hold no gradient", bucket_bytes), "", "use 1 or more"});
  }
  const auto& slots = state.layout.slots();
  const int64_t element_bytes = state.gradients.element_size();
  for (size_t i = 0; i < slots.size(); ++i) {
    if (buckets_.empty() || buckets_.back().count * element_bytes >= bucket_bytes) {
      buckets_.push_back({static_cast<int>(buckets_.size()), slots[i].offset, 0, {}});
    }
    Bucket& bucket = buckets_.back();
    const int64_t end = i + 1 < slots.size() ? slots[i + 1].offset : state.layout.count();
    bucket.count = end - bucket.offset;
    bucket.parameters.push_back(slots[i].parameter);
    arrivals_[i].bucket = bucket.index;
  }
  begin_step();
}

void GradientBuckets::begin_step() {
  armed_ = false;
  works_.clear();
  for (Arrival& arrival : arrivals_) arrival = {arrival.bucket, 0, false};
  missing_.assign(buckets_.size(), 0);
  for (const Bucket& bucket : buckets_) missing_[bucket.index] = static_cast<int>(bucket.parameters.size());
}

void GradientBuckets::arm() { armed_ = true; }

void GradientBuckets::deposit(Parameter& parameter, const at::Tensor& gradient) {
  const size_t index = state_.layout.index(parameter);
  Arrival& arrival = arrivals_[index];
  if (static_cast<size_t>(arrival.bucket) < works_.size()) {
    throw UsageError({.op = "bucket",
                      .subject = parameter.name(),
                      .fact = "a gradient arrives after its bucket has gone out",
                      .where = fmt::format("bucket {} of {}", arrival.bucket, buckets_.size()),
                      .action = "run one backward after arm(), and begin_step() before the next step"});
  }
  const at::NoGradGuard no_grad;
  const at::Tensor view = state_.layout.view(state_.gradients, parameter);
  // Autograd adds in place where a leaf's .grad is this very view (a user's zero_grad that keeps the tensor).
  const bool is_in_place = !gradient.is_meta() && gradient.data_ptr() == view.data_ptr();
  if (!is_in_place) {
    if (arrival.written) {
      view.add_(gradient);
    } else {
      view.copy_(gradient);
    }
  }
  arrival.written = true;
  if (!armed_) return;
  if (!works_.empty()) works_.back().done();  // what is in flight moves on between two pieces of backward
  if (++arrival.deposits == parameter.num_deposits()) {
    --missing_[arrival.bucket];
    pay_ready();
  }
}

void GradientBuckets::pay_ready() {
  while (works_.size() < buckets_.size() && missing_[works_.size()] == 0) pay(static_cast<int>(works_.size()));
}

void GradientBuckets::pay(int index) {
  const Bucket& bucket = buckets_[index];
  for (Parameter* parameter : bucket.parameters) {
    if (!arrivals_[state_.layout.index(*parameter)].written) state_.layout.view(state_.gradients, *parameter).zero_();
  }
  works_.push_back(pay_(bucket, state_.gradients.narrow(0, bucket.offset, bucket.count)));
}

void GradientBuckets::finish(int index) {
  const at::NoGradGuard no_grad;
  while (works_.size() <= static_cast<size_t>(index)) pay(static_cast<int>(works_.size()));
  works_[index].wait();
}

void GradientBuckets::finish_step() {
  for (const Bucket& bucket : buckets_) finish(bucket.index);
}

std::vector<Parameter*> GradientBuckets::unused() const {
  std::vector<Parameter*> unused;
  for (size_t i = 0; i < arrivals_.size(); ++i) {
    if (!arrivals_[i].written) unused.push_back(state_.layout.slots()[i].parameter);
  }
  return unused;
}

}  // namespace caravan

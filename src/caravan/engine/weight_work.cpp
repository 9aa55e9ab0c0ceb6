#include "caravan/engine/weight_work.h"

#include <algorithm>
#include <iterator>

namespace caravan {

void WeightWork::begin_step() {
  queue_.clear(this);
  backwards_.clear();
  waits_ = false;
  num_pushed_ = num_run_ = 0;
}

void WeightWork::reach() {
  if (!waits_ && !backwards_.empty()) queue_.run_all();
}

void WeightWork::begin(const Action& backward, bool waits) {
  backwards_.emplace_back(backward, num_pushed_);
  waits_ = waits;
}

void WeightWork::push(std::function<void()> work) {
  if (!waits_) queue_.run_all();
  ++num_pushed_;
  auto run = [this, work = std::move(work)] {
    ++num_run_;
    work();
  };
  queue_.push(std::move(run), this);
}

void WeightWork::end() {
  if (!waits_) queue_.run_all();
}

bool WeightWork::run(const Action& weight) {
  const auto is_its = [&](const auto& backward) {
    return backward.first.unit == weight.unit && backward.first.micro_batch == weight.micro_batch;
  };
  // Searched from the end: the backward was a few micro-batches ago, however many a step has.
  const auto found = std::find_if(backwards_.rbegin(), backwards_.rend(), is_its);
  if (found == backwards_.rend()) return false;
  const size_t until = found == backwards_.rbegin() ? num_pushed_ : std::prev(found)->second;
  if (until > num_run_) queue_.run(until - num_run_);
  return true;
}

}  // namespace caravan

#include "caravan/cost/step_timeline.h"

#include <utility>

namespace caravan {

using Kind = StepTimeline::Moment::Kind;

double StepTimeline::flops() const noexcept {
  double sum = 0;
  for (const Moment& moment : moments) {
    if (moment.kind == Kind::kernel) sum += kernels[static_cast<size_t>(moment.index)].flops();
  }
  return sum;
}

void TimelineBuilder::begin_event(const std::string& what) {
  event_ = static_cast<int32_t>(timeline_.events.size());
  timeline_.events.push_back(what);
}

void TimelineBuilder::add(const KernelWork& work) {
  const auto [found, is_new] = number_of_.try_emplace(work, static_cast<int32_t>(timeline_.kernels.size()));
  if (is_new) timeline_.kernels.push_back(work);
  add(Kind::kernel, found->second);
}

int32_t TimelineBuilder::begin(StepTimeline::Call call) {
  const auto number = static_cast<int32_t>(timeline_.calls.size());
  timeline_.calls.push_back(std::move(call));
  add(Kind::begin, number);
  return number;
}

void TimelineBuilder::end(int32_t call) { add(Kind::end, call); }

StepTimeline TimelineBuilder::take() {
  number_of_.clear();
  event_ = 0;
  return std::exchange(timeline_, {});
}

}  // namespace caravan

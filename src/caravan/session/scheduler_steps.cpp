#include "caravan/session/scheduler_steps.h"

#include <torch/optim/schedulers/lr_scheduler.h>

namespace caravan {
namespace {

struct StepsOf : torch::optim::LRScheduler {
  static unsigned& of(LRScheduler& scheduler) { return scheduler.*(&StepsOf::step_count_); }
};

}  // namespace

std::vector<int64_t> scheduler_steps(const std::vector<torch::optim::LRScheduler*>& schedulers) {
  std::vector<int64_t> steps;
  for (torch::optim::LRScheduler* scheduler : schedulers) steps.push_back(StepsOf::of(*scheduler));
  return steps;
}

void set_scheduler_steps(const std::vector<torch::optim::LRScheduler*>& schedulers, const std::vector<int64_t>& steps) {
  for (size_t i = 0; i < schedulers.size(); ++i) StepsOf::of(*schedulers[i]) = static_cast<unsigned>(steps.at(i));
}

}  // namespace caravan

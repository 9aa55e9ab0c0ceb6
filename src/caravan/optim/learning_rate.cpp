#include "caravan/optim/learning_rate.h"

#include "caravan/registry/registry.h"

namespace caravan {

double LearningRate::at(int64_t step) const {
  if (step < warmup_steps) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  return lr * schedule.entry().rate(schedule, step, warmup_steps, total_steps);
}

}  // namespace caravan

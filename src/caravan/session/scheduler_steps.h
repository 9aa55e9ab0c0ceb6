#pragma once

#include <cstdint>
#include <vector>

namespace torch::optim {
class LRScheduler;
}

namespace caravan {

/// The steps that each scheduler has counted, which torch keeps to derived classes.
std::vector<int64_t> scheduler_steps(const std::vector<torch::optim::LRScheduler*>& schedulers);
void set_scheduler_steps(const std::vector<torch::optim::LRScheduler*>& schedulers, const std::vector<int64_t>& steps);

}  // namespace caravan

#pragma once

#include "caravan/engine/strategy.h"

namespace caravan::testing {

/// Test-only technique: 1F1B over the stages of a pipeline, with the weight gradients of each micro-batch deferred
/// until the backward of the next (the last ones: to the end), as zero-bubble schedules do.
inline PassOrder one_f_one_b(int num_micro_batches, int num_stages, int stage) {
  PassOrder order;
  const auto add = [&](Pass::Kind kind, int micro_batch) { order.push_back({kind, micro_batch, stage}); };
  const int warm_up = std::min(num_stages - 1 - stage, num_micro_batches);
  for (int m = 0; m < warm_up; ++m) add(Pass::Kind::forward, m);
  for (int m = 0; m < num_micro_batches; ++m) {
    if (m + warm_up < num_micro_batches) add(Pass::Kind::forward, m + warm_up);
    add(Pass::Kind::backward, m);
    if (m > 0) add(Pass::Kind::weight, m - 1);
  }
  add(Pass::Kind::weight, num_micro_batches - 1);
  return order;
}

inline void run_one_f_one_b(Strategy& strategy) {
  const int num_stages = strategy.num_stages();
  strategy.passes = [num_stages](int num_micro_batches) {
    std::vector<PassOrder> orders;
    for (int stage = 0; stage < num_stages; ++stage) {
      orders.push_back(one_f_one_b(num_micro_batches, num_stages, stage));
    }
    return orders;
  };
  strategy.gathers = {.prefetch = 1};
  strategy.reduces_each_micro_batch = true;
}

}  // namespace caravan::testing

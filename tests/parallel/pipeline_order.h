#pragma once

#include <string>

#include "caravan/parallel/pipeline_schedule.h"

namespace caravan::testing {

/// The order of a schedule by its name. `of_batch`: micro-batches of a batch, where stages update between batches.
inline PipelineOrder order_of(const std::string& schedule, int ranks, int micro_batches, int stages_per_rank = 0,
                              int of_batch = 0) {
  return pipeline_order(
      {.degree = ranks, .schedule = schedule, .micro_batches = of_batch, .stages_per_rank = stages_per_rank},
      micro_batches);
}

}  // namespace caravan::testing

#pragma once

#include <string>

#include "caravan/schedule/pipeline_schedule.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing {

/// The order of a schedule by its name. `of_batch`: micro-batches in a batch, if stages update between batches.
inline PipelineOrder order_of(const std::string& schedule, int ranks, int micro_batches, int stages_per_rank = 0,
                              int of_batch = 0) {
  return pipeline_order(pipeline_of(schedule, ranks, stages_per_rank, of_batch), micro_batches);
}

}  // namespace caravan::testing

#include "caravan/schedule/order_writer.h"
#include "caravan/techniques/pipeline/schedule_keys.h"

namespace caravan {
namespace {

PipelineOrder naive_order(const PipelineChoice& choice, int num_micro_batches) {
  return order_by_stage("naive", choice, num_micro_batches,
                        [&](int stage) { return accumulate(num_micro_batches, stage); });
}

}  // namespace

Entry naive_entry() {
  return {.family = "pipeline",
          .name = "naive",
          .summary = "one micro-batch at a time is in the whole pipeline",
          .keys = schedule_keys(),
          .traits = usual_traits_of};
}

/// Model parallelism without a pipeline. Bubble m (p-1)(F+B+W), activations 1.
PipelineSchedule naive_schedule() { return {.order = naive_order}; }

}  // namespace caravan

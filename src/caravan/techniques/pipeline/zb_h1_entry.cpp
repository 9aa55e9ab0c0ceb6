#include "caravan/schedule/order_writer.h"
#include "caravan/techniques/pipeline/schedule_keys.h"

namespace caravan {

Entry zb_h1_entry() {
  return {.family = "pipeline",
          .name = "zb-h1",
          .summary = "weight gradients wait, and fill the bubble; the activations of 1f1b",
          .paper = "Qi et al., arXiv 2401.10241",
          .keys = schedule_keys(),
          .traits = usual_traits_of};
}

/// Holds the activations of 1F1B's first stage, p, on every rank. Bubble (p-1)(F+B-W) if m is at least p, and W no
/// longer than F and B.
PipelineSchedule zb_h1_schedule() {
  return {.order = [](const PipelineChoice& choice, int num_micro_batches) {
    return zero_bubble("zb-h1", choice, num_micro_batches, 1);
  }};
}

}  // namespace caravan

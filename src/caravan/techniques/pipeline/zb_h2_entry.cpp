#include "caravan/schedule/order_writer.h"
#include "caravan/techniques/pipeline/schedule_keys.h"

namespace caravan {

Entry zb_h2_entry() {
  return {.family = "pipeline",
          .name = "zb-h2",
          .summary = "weight gradients wait, and fill the bubble; twice the activations of 1f1b",
          .paper = "Qi et al., arXiv 2401.10241",
          .keys = schedule_keys(),
          .traits = usual_traits_of};
}

/// Holds 2p-1 activations. If m is at least that, a rank waits at most (p-1)(F+B-2W) between its first and its last
/// pass, and not at all if this is negative, as for F = B = W.
PipelineSchedule zb_h2_schedule() {
  return {.order = [](const PipelineChoice& choice, int num_micro_batches) {
    return zero_bubble("zb-h2", choice, num_micro_batches, 2);
  }};
}

}  // namespace caravan

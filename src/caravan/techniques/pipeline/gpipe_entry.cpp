#include "caravan/schedule/order_writer.h"
#include "caravan/techniques/pipeline/schedule_keys.h"

namespace caravan {
namespace {

PipelineOrder gpipe_order(const PipelineChoice& choice, int num_micro_batches) {
  return order_by_stage("gpipe", choice, num_micro_batches, [&](int stage) {
    PassOrder order = forward_only(num_micro_batches, stage);
    for (int m = 0; m < num_micro_batches; ++m) order.push_back({Pass::Kind::backward, m, stage});
    return order;
  });
}

}  // namespace

Entry gpipe_entry() {
  return {.family = "pipeline",
          .name = "gpipe",
          .summary = "all forwards, then all backwards",
          .paper = "Huang et al., arXiv 1811.06965",
          .keys = schedule_keys(),
          .traits = usual_traits_of};
}

/// Bubble (p-1)(F+B+W), activations m.
PipelineSchedule gpipe_schedule() { return {.order = gpipe_order}; }

}  // namespace caravan

#include "caravan/schedule/order_writer.h"
#include "caravan/techniques/pipeline/schedule_keys.h"

namespace caravan {

Entry one_f_one_b_entry() {
  return {.family = "pipeline",
          .name = "1f1b",
          .summary = "a backward as soon as its gradient has arrived, and a forward in between",
          .paper = "Narayanan et al., arXiv 2104.04473",
          .keys = schedule_keys(),
          .traits = usual_traits_of};
}

/// Bubble (p-1)(F+B+W), activations min(p-s, m) on stage s.
PipelineSchedule one_f_one_b_schedule() { return {.order = one_forward_one_backward}; }

}  // namespace caravan

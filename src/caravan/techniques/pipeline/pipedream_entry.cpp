#include <fmt/format.h>

#include "caravan/registry/registry.h"
#include "caravan/schedule/order_writer.h"
#include "caravan/techniques/pipeline/windows.h"

namespace caravan {

Entry pipedream_entry() {
  return {.family = "pipeline",
          .name = "pipedream",
          .summary = "stages update independently after each batch, with versions of their weights",
          .paper = "Narayanan et al., SOSP 2019",
          .keys = keys_of_windows(),
          .traits = [](const Setting&) { return traits_of_pipedream("pipedream"); }};
}

/// m mini-batches in the order of 1F1B, each followed by an update of the stage. Stage s computes mini-batch t, forward
/// and backward, with the weights after max(0, t - (p-1-s)) updates, of which it keeps up to p-s versions. Waits only
/// while it fills and drains: (p-1)(F+B+W).
PipelineSchedule pipedream_schedule() {
  return {.order =
              [](const PipelineChoice& choice, int num_micro_batches) {
                return with_updates(one_forward_one_backward(choice, num_micro_batches), 1);
              },
          .misfit_of_micro_batches = [](const PipelineChoice&, int64_t count) -> std::optional<Misfit> {
            if (count == 1) return std::nullopt;
            return Misfit{"pipeline.micro_batches",
                          fmt::format("pipedream takes each batch whole, not in {} micro-batches", count),
                          "use pipeline.micro_batches = 1, or \"pipedream-2bw\"", true};
          },
          .updates = PipelineSchedule::Updates::each_micro_batch};
}

}  // namespace caravan

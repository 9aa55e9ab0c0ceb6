#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/registry/registry.h"
#include "caravan/schedule/order_writer.h"
#include "caravan/techniques/pipeline/windows.h"

namespace caravan {
namespace {

PipelineOrder order_of_batches(const PipelineChoice& choice, int num_micro_batches) {
  const int of_batch = choice.micro_batches() > 0 ? static_cast<int>(choice.micro_batches()) : num_micro_batches;
  const int num_batches = std::max(1, num_micro_batches / of_batch);
  if (of_batch < choice.degree) {
    throw UsageError(
        {.op = "pipeline",
         .subject = "pipedream-2bw",
         .fact = fmt::format("{} batches of {} micro-batches for {} ranks", num_batches, of_batch, choice.degree),
         .action = "use at least one batch, of as many micro-batches as there are ranks"});
  }
  return with_updates(one_forward_one_backward(choice, of_batch * num_batches), of_batch);
}

}  // namespace

Entry pipedream_2bw_entry() {
  return {.family = "pipeline",
          .name = "pipedream-2bw",
          .summary = "stages update independently after a batch of micro-batches, with two versions",
          .paper = "Narayanan et al., arXiv 2006.09503",
          .keys = keys_of_windows(),
          .traits = [](const Setting&) { return traits_of_pipedream("pipedream-2bw"); }};
}

/// Batches of m micro-batches in the order of 1F1B, with an update of the stage after the last backward of each. All of
/// batch t is computed with the weights after max(0, t-1) updates: two versions. m is at least p.
PipelineSchedule pipedream_2bw_schedule() {
  return {.order = order_of_batches,
          .misfit_of_micro_batches = [](const PipelineChoice& choice, int64_t count) -> std::optional<Misfit> {
            if (count >= choice.degree) return std::nullopt;
            return Misfit{"pipeline.micro_batches",
                          fmt::format("pipedream-2bw: {} micro-batches are fewer than the {} ranks of mesh.pp", count,
                                      choice.degree),
                          fmt::format("use {} or more", choice.degree)};
          },
          .updates = PipelineSchedule::Updates::each_batch};
}

}  // namespace caravan

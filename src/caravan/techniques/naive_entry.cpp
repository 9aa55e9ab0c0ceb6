#include "caravan/parallel/order_writer.h"
#include "caravan/registry/registry.h"

namespace caravan {
namespace {

PipelineOrder naive_order(const PipelineChoice& choice, int num_micro_batches) {
  const auto num_ranks = static_cast<int>(choice.degree);
  check_sizes("naive", num_ranks, num_micro_batches);
  PipelineOrder result{{}, in_turn(num_ranks, num_ranks)};
  for (int stage = 0; stage < num_ranks; ++stage) result.ranks.push_back(accumulate(num_micro_batches, stage));
  return result;
}

}  // namespace

Entry naive_entry() {
  return {.family = "pipeline",
          .name = "naive",
          .summary = "one micro-batch at a time is in the whole pipeline",
          .traits = all_traits_of};
}

/// Model parallelism without a pipeline. Bubble m (p-1)(F+B+W), activations 1.
PipelineSchedule naive_schedule() { return {.order = naive_order}; }

}  // namespace caravan

#include <algorithm>

#include "caravan/schedule/order_writer.h"
#include "caravan/techniques/pipeline/schedule_keys.h"

namespace caravan {
namespace {

PipelineOrder zb_v_order(const PipelineChoice& choice, int num_micro_batches) {
  using enum Pass::Kind;
  const auto num_ranks = static_cast<int>(choice.degree);
  check_sizes("zb-v", num_ranks, num_micro_batches);
  PipelineOrder result;
  for (int stage = 0; stage < 2 * num_ranks; ++stage) {
    result.rank_of_stage.push_back(std::min(stage, 2 * num_ranks - 1 - stage));
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int down = rank;                    // towards the turn of the V
    const int up = 2 * num_ranks - 1 - rank;  // and back
    OrderWriter writer(num_micro_batches);
    const auto add_all = [&](int stage) {
      for (const Pass::Kind kind : {forward, backward, weight}) writer.add(kind, stage);
    };
    for (int i = 0; i < 2 * (num_ranks - rank) - 1; ++i) writer.add(forward, down);
    for (int i = 0; i < rank; ++i) {
      writer.add(forward, up);
      writer.add(forward, down);
    }
    for (int i = 0; i < num_ranks - rank; ++i) add_all(up);
    while (!writer.is_complete(forward, up)) {
      add_all(down);
      add_all(up);
    }
    for (int i = 0; i < rank; ++i) {
      writer.add(backward, down);
      writer.add(backward, up);
    }
    while (!writer.is_complete(backward, down) || !writer.is_complete(backward, up)) {
      writer.add(backward, down);
      writer.add(weight, down);
      writer.add(backward, up);
    }
    for (const int stage : {up, down}) {
      while (!writer.is_complete(weight, stage)) writer.add(weight, stage);
    }
    result.ranks.push_back(writer.order());
  }
  return result;
}

}  // namespace

Entry zb_v_entry() {
  return {.family = "pipeline",
          .name = "zb-v",
          .summary = "two stages a rank, in a V, and no bubble",
          .paper = "Qi et al., arXiv 2405.15362",
          .keys = schedule_keys(),
          .traits = usual_traits_of};
}

/// Rank r holds the stages r and 2p-1-r, so the loss is on rank 0. No rank waits between its first and its last pass if
/// F = B = W and m is at least 2p-1; activations 2p of these half stages.
PipelineSchedule zb_v_schedule() { return {.order = zb_v_order, .least_stages = 2, .most_stages = 2}; }

}  // namespace caravan

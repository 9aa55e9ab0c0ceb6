#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/schedule/order_writer.h"
#include "caravan/techniques/pipeline/schedule_keys.h"

namespace caravan {
namespace {

PipelineOrder interleaved_order(const PipelineChoice& choice, int num_micro_batches) {
  using enum Pass::Kind;
  const auto num_ranks = static_cast<int>(choice.degree);
  const auto stages_per_rank = static_cast<int>(choice.chunks());
  check_sizes("interleaved", num_ranks, num_micro_batches);
  if (num_micro_batches % num_ranks != 0) {
    const int nearest_groups = std::max((num_micro_batches + num_ranks / 2) / num_ranks, 1);
    throw UsageError(
        {.op = "pipeline",
         .subject = "interleaved",
         .fact = fmt::format("{} micro-batches are not a multiple of {} ranks", num_micro_batches, num_ranks),
         .action = fmt::format("use {}", nearest_groups * num_ranks)});
  }
  const int total = num_micro_batches * stages_per_rank;
  const int group = num_ranks * stages_per_rank;
  PipelineOrder result{{}, in_turn(num_ranks, group)};
  for (int rank = 0; rank < num_ranks; ++rank) {
    // The i-th forward, and the i-th backward, which takes the stages in reverse.
    const auto pass = [&](Pass::Kind kind, int i) {
      const int turn = i % group / num_ranks;
      const int chunk = kind == forward ? turn : stages_per_rank - 1 - turn;
      return Pass{kind, i / group * num_ranks + i % num_ranks, chunk * num_ranks + rank};
    };
    const int warm_up = std::min(total, 2 * (num_ranks - 1 - rank) + (stages_per_rank - 1) * num_ranks);
    PassOrder order;
    for (int i = 0; i < total + warm_up; ++i) {
      if (i < total) order.push_back(pass(forward, i));
      if (i >= warm_up) order.push_back(pass(backward, i - warm_up));
    }
    result.ranks.push_back(std::move(order));
  }
  return result;
}

}  // namespace

Entry interleaved_entry() {
  return {.family = "pipeline",
          .name = "interleaved",
          .summary = "1f1b over several stages a rank",
          .paper = "Narayanan et al., arXiv 2104.04473",
          .keys = schedule_keys(),
          .traits = usual_traits_of};
}

/// Stage s is on rank s % p, and groups of p micro-batches go through one after another. Bubble (p-1)(F+B+W) of one of
/// these smaller stages; activations of rank 0 p v + p - 1 of them, or m v.
PipelineSchedule interleaved_schedule() {
  return {.order = interleaved_order,
          .least_stages = 2,
          .most_stages = kAnyStages,
          .misfit_of_micro_batches = [](const PipelineChoice& choice, int64_t count) -> std::optional<Misfit> {
            if (count % choice.degree == 0) return std::nullopt;
            return Misfit{"pipeline.micro_batches",
                          fmt::format("interleaved: {} micro-batches are not a multiple of the {} ranks of mesh.pp",
                                      count, choice.degree),
                          fmt::format("use a multiple of {}", choice.degree)};
          }};
}

}  // namespace caravan

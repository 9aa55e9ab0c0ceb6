#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "caravan/schedule/pipeline_choice.h"
#include "caravan/schedule/schedule.h"

namespace caravan {

/// A pipeline schedule: what each rank of the axis pp does in a step, and which stages it holds.
struct PipelineOrder {
  std::vector<PassOrder> ranks;    ///< by coordinate
  std::vector<int> rank_of_stage;  ///< by stage
  int num_stages() const noexcept { return static_cast<int>(rank_of_stage.size()); }
};

// The schedules of the field, each a pure function of p ranks and m micro-batches. F, B, W: the time of a stage's
// forward, its input gradients, its weight gradients. A bubble is the time in which a rank waits, from the start of the
// step to its end; activations are counted in micro-batches of a stage, on stage s (schedule/pipeline.h has both).

/// The part of a schedule that an entry of the registry does not have.
struct PipelineSchedule {
  /// When stages step their optimizer on their own: never, after each micro-batch, or after each batch of
  /// choice.micro_batches().
  enum class Updates : uint8_t { none, each_micro_batch, each_batch };

  /// The passes of choice.degree ranks. Throws UsageError for numbers that it has no table for.
  std::function<PipelineOrder(const PipelineChoice& choice, int num_micro_batches)> order{};
  int64_t least_stages = 1;  ///< on each rank, and as many if the recipe does not say
  int64_t most_stages = 1;
  /// Why a step cannot have so many micro-batches.
  std::function<std::optional<Misfit>(const PipelineChoice& choice, int64_t num_micro_batches)>
      misfit_of_micro_batches = [](const PipelineChoice&, int64_t) { return std::optional<Misfit>(); };
  Updates updates = Updates::none;
};
inline constexpr int64_t kAnyStages = int64_t{1} << 20;

/// The schedule that is chosen.
const PipelineSchedule& schedule_of(const PipelineChoice& choice);

/// The schedule that is chosen, over its `degree` ranks; of pipedream-2bw batches of choice.micro_batches(). Throws
/// UsageError for numbers that it has no table for. `recompute`: with_recompute of it.
PipelineOrder pipeline_order(const PipelineChoice& choice, int num_micro_batches, bool recompute = false);

/// The rank that holds each stage, whatever the number of micro-batches.
std::vector<int> ranks_of_stages(const PipelineChoice& choice);

/// Lets every stage keep its input alone and run its forward again (C), right before the backward: where that waits for
/// a gradient, the recompute runs in the bubble. Not for a forward whose backward follows at once.
PipelineOrder with_recompute(PipelineOrder order);

/// The most that a rank holds at once, from the forward of a stage to its backward (or W, where it has one).
struct HeldActivations {
  int64_t activations = 0;  ///< of micro-batches, in units of one stage's
  int64_t inputs = 0;       ///< of stages that keep their input alone
};
std::vector<HeldActivations> held_activations(const PipelineOrder& order);

}  // namespace caravan

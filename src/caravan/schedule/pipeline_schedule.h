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

// The known schedules, each a pure function of p ranks and m micro-batches. F, B, W: the time of a stage's forward,
// input gradients and weight gradients. A bubble is the time in which a rank waits, from the start of the step to its
// end; activations are counted in micro-batches of a stage, on stage s (schedule/pipeline.h computes both).

/// The part of a schedule that is not in its entry of the registry.
struct PipelineSchedule {
  /// When stages step their own optimizer: never, after each micro-batch, or after each batch of
  /// choice.micro_batches().
  enum class Updates : uint8_t { none, each_micro_batch, each_batch };

  /// The passes of choice.degree ranks. Throws UsageError for numbers without a table.
  std::function<PipelineOrder(const PipelineChoice& choice, int num_micro_batches)> order{};
  int64_t least_stages = 1;  ///< on each rank; also the default
  int64_t most_stages = 1;
  /// Why a step cannot have this number of micro-batches.
  std::function<std::optional<Misfit>(const PipelineChoice& choice, int64_t num_micro_batches)>
      misfit_of_micro_batches = [](const PipelineChoice&, int64_t) { return std::optional<Misfit>(); };
  Updates updates = Updates::none;
};
inline constexpr int64_t kAnyStages = int64_t{1} << 20;

/// The chosen schedule.
const PipelineSchedule& schedule_of(const PipelineChoice& choice);

/// The chosen schedule over its `degree` ranks; for pipedream-2bw with batches of choice.micro_batches(). Throws
/// UsageError for numbers without a table. `recompute`: applies with_recompute.
PipelineOrder pipeline_order(const PipelineChoice& choice, int num_micro_batches, bool recompute = false);

/// The rank that holds each stage, for any number of micro-batches.
std::vector<int> ranks_of_stages(const PipelineChoice& choice);

/// Makes every stage keep only its input and repeat its forward (C) right before the backward: if that waits for a
/// gradient, the recompute runs in the bubble. Not for a forward that its backward follows directly.
PipelineOrder with_recompute(PipelineOrder order);

/// The maximum that a rank holds at once, from the forward of a stage to its backward (or W, if it has one).
struct HeldActivations {
  int64_t activations = 0;  ///< of micro-batches, in units of one stage's
  int64_t inputs = 0;       ///< of stages that keep only their input
};
std::vector<HeldActivations> held_activations(const PipelineOrder& order);

}  // namespace caravan

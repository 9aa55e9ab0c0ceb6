#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "caravan/cost/hardware.h"
#include "caravan/cost/rehearsal.h"
#include "caravan/cost/simulate.h"
#include "caravan/plan/prediction.h"
#include "caravan/schedule/pipeline_choice.h"

namespace caravan {

/// What a step is for, whoever wrote it: a recipe or a program.
struct StepWork {
  double rows = 0;                 ///< of the whole batch
  double tokens = 0;               ///< of these; 0: rows are not made of tokens
  double flops = 0;                ///< of the model, forward and backward
  std::string dtype{};             ///< of the arithmetic
  int64_t budget_bytes = 0;        ///< the most that a device may hold; 0: all that it has
  bool is_update_delayed = false;  ///< the host steps beside a whole step
};

/// The rank with the slowest device of `count` from `first` on, the first of equal ones: all ranks of a place of a
/// pipeline do the same, so that this one decides.
int slowest_rank(const Hardware& hardware, int first, int count, const std::string& dtype);

/// The least memory of `count` devices from `first` on, without what is reserved.
int64_t room_of(const Hardware& hardware, int first, int count);

/// From rehearsals of a rank of each place of the pipeline. complete() adds what is missing.
Prediction predict_rehearsed(std::span<const Rehearsal> rehearsals, const StepCosts& costs,
                             std::vector<SimulatedStep::Span>* spans = nullptr);
/// Micro-batches of two steps that are rehearsed, and of the one that is predicted from them.
struct RepeatedBatches {
  int64_t few, more, all;
  double memory_share = 1;  ///< of the second step in the memory of the third; the rest is of the first
  bool is_full() const noexcept { return memory_share == 1; }  ///< no more are in flight than in the second
  /// Of a pipeline: memory follows the micro-batches in flight, which in most schedules are soon as many as ever.
  static RepeatedBatches of(const PipelineChoice& pipeline, int64_t few, int64_t more, int64_t all);
};
/// The same for a step with more micro-batches than two that are rehearsed, not complete. If these repeat a block of
/// passes, by the timeline with more blocks: a line through two times misses where what is sent once a step takes as
/// long as few micro-batches. Else by the line. `is_repeated`: which.
Prediction predict_repeated(std::span<const Rehearsal> few, std::vector<Rehearsal> more, const RepeatedBatches& batches,
                            const StepCosts& costs, bool* is_repeated = nullptr);
/// Adds a share of a prediction before it is complete, to extrapolate between some whose shares add up to 1.
void add_share(Prediction& sum, const Prediction& one, double share);
/// Adds what offload costs, rates, and the memory there is. Throws UsageError for disks that the hardware has not.
void complete(Prediction& prediction, const Hardware& hardware, int num_ranks, const StepWork& work);

}  // namespace caravan

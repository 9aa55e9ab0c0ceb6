#pragma once

#include <cstdint>
#include <functional>

#include "caravan/server/async_trainer.h"
#include "caravan/step/batch.h"
#include "caravan/train/run_state.h"

namespace caravan {

/// The steps of a run whose ranks do not wait for each other (DataParallelChoice::is_asynchronous), from drain to
/// drain. Evaluations and checkpoints are at drains, so a drain begins at the latest when one of them is due.
class AsyncRun {
 public:
  /// All outlive this. Every rank of the mesh calls it, after a checkpoint is loaded. A run that is resumed on another
  /// number of ranks has the clocks of the slowest rank. Throws UsageError if the servers cannot be those of an
  /// AsyncTrainer.
  AsyncRun(RunState& state, const Recipe& recipe, int64_t num_micro_batches);

  /// The batch of this rank's own step.
  using BatchOf = std::function<TrainBatch(int64_t step)>;

  /// Trains to the next drain, at most to step `end`. Every rank calls it. Sets state.step and state.clocks.
  DrainReport run(int64_t end, const BatchOf& batch_of, const std::function<bool()>& stop_requested);

  const AsyncTrainer& trainer() const noexcept { return trainer_; }

 private:
  RunState& state_;
  const Recipe& recipe_;
  int64_t num_micro_batches_;
  AsyncTrainer trainer_;
};

}  // namespace caravan

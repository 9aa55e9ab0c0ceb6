#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "caravan/step/batch.h"
#include "caravan/train/run_state.h"

namespace caravan {

/// What happened between two drains, the same on every rank.
struct WindowReport {
  int64_t num_steps = 0;
  double loss = 0;       ///< the mean of these steps
  double grad_norm = 0;  ///< of the last step, each stage's gradient by the weights that it had
  bool stop = false;     ///< some rank asked to stop
};

/// The steps of a pipeline whose stages do not wait for each other (PipelineChoice::is_asynchronous), from drain to
/// drain: inside of a window each stage steps its optimizer when its backward of a step is over, and computes the next
/// one meanwhile. A drain leaves the state as after a synchronous step: evaluations and checkpoints are there.
class WindowRun {
 public:
  /// All outlive this. Every rank of the mesh calls it, after a checkpoint is loaded.
  WindowRun(RunState& state, const Recipe& recipe, int64_t num_micro_batches);

  /// The batch of this rank in a step.
  using BatchOf = std::function<TrainBatch(int64_t step)>;

  /// Trains to the next drain, at most to step `end`. Every rank calls it. Sets state.step. Throws NumericsError on
  /// every rank if the loss or the norm of the window is not finite.
  WindowReport run(int64_t end, const BatchOf& batch_of, bool stop_requested);

 private:
  RunState& state_;
  const Recipe& recipe_;
  int num_micro_batches_;
  StageRunner runner_;
};

}  // namespace caravan

#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "caravan/engine/training_state.h"
#include "caravan/optim/learning_rate.h"
#include "caravan/step/sync_report.h"
#include "caravan/step/train_step.h"

namespace caravan {

/// The inputs of every stepper.
struct StepperInputs {
  Engine& engine;  ///< this, the optimizer and the loss scale outlive the stepper
  Optimizer& optimizer;
  LearningRate learning_rate{};
  TrainStep::Options options{};  ///< for a rank's step
  int64_t global_rows = 0;       ///< in a step, over all ranks
  int64_t steps_at_once = 1;     ///< if steps are not separate: the maximum number between boundaries
};

/// The result of Stepper::advance, the same on every rank except for `own_steps`.
struct StepReport {
  double loss = 0;                     ///< nats per target token, the mean of the steps, before their updates
  double grad_norm = 0;                ///< before clipping
  int64_t rows = 0;                    ///< trained on by all ranks
  int64_t total_rows = 0;              ///< the same since the start of the run
  int64_t own_steps = 1;               ///< at least 1: the divisor of this rank's times and bytes
  bool stop = false;                   ///< some rank asked to stop
  std::vector<double> waits_ms{};      ///< for a step with stages that flush: StepResult::waits_ms
  std::optional<double> loss_scale{};  ///< of the step (fp16)
  std::string spike{};                 ///< why the step was skipped as a spike; "": it was not
  std::optional<SyncReport> drain{};   ///< for ranks that do not wait for each other
};

/// A way of stepping: advances a training run, which knows no other interface. All of its state is the engine's and the
/// optimizer's, state(), step() and clocks(): after advance() throws it may be abandoned, and a new one made from a
/// checkpoint.
class Stepper {
 public:
  /// The batch of this rank in a step, counted from 0: make_rank_batch.
  using BatchOf = std::function<TrainBatch(int64_t step)>;
  using StopRequested = std::function<bool()>;  ///< asked on this rank
  using Inspect = TrainStep::Inspect;

  virtual ~Stepper() = default;

  /// State kept across steps in addition to the engine's and the optimizer's tensors; null: none. Names begin with
  /// kStepperTensors.
  virtual StateOwner* state() { return nullptr; }
  /// Call it before advance(), when all state is loaded. `step`: steps done by the slowest rank; `clocks`: steps done
  /// by each rank, if they differ, for any number of ranks.
  virtual void start_at(int64_t step, const std::vector<int64_t>& clocks);

  /// Trains from step() to a boundary, where every rank has done the same steps, nothing is in flight, and evaluations,
  /// checkpoints and other collectives are legal. Does at least one step, unless a stop is requested, and goes no
  /// further than step `end`. Every rank of the mesh calls it with the same `end`, after step(). Throws NumericsError,
  /// on every rank if fails_together().
  virtual StepReport advance(int64_t end, const BatchOf& batch_of, const StopRequested& stop_requested) = 0;

  /// Steps done by the slowest rank.
  int64_t step() const noexcept { return step_; }
  /// Steps done by each rank, if they differ; else empty.
  const std::vector<int64_t>& clocks() const noexcept { return clocks_; }

  /// The maximum number of steps between two boundaries; boundaries are at multiples of it.
  int64_t steps_at_once() const noexcept { return in_.steps_at_once; }
  /// How many of these a rehearsal needs: further steps need no more memory and send what the last of them sends.
  virtual int64_t enough_steps() const { return 1; }
  /// One past the last step that some rank begins in advance(end): a fast one may be ahead of the boundary.
  virtual int64_t end_of_begun(int64_t end) const { return next_boundary(end); }
  /// Whether a numerics error is thrown on every rank, in the same step.
  virtual bool fails_together() const { return true; }

  /// See TrainStep::Inspect. Throws UsageError if no step has one gradient of all ranks and one version of the weights.
  virtual void set_inspect(Inspect inspect);

  virtual int64_t bytes_sent() const { return 0; }  ///< by this rank, except what the mesh counts
  virtual double wait_ms() const { return 0; }      ///< the same for Mesh::wait_ms

 protected:
  explicit Stepper(const StepperInputs& inputs) : in_(inputs) {}

  int64_t next_boundary(int64_t end) const { return std::min(end, (step() / steps_at_once() + 1) * steps_at_once()); }

  StepperInputs in_;
  int64_t step_ = 0;
  std::vector<int64_t> clocks_{};
};

/// Steps after which all ranks continue together, one for each advance(): TrainStep. Every rank of the mesh calls it.
std::unique_ptr<Stepper> make_sync_stepper(const StepperInputs& inputs);

}  // namespace caravan

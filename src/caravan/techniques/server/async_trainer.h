#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "caravan/engine/stages/stage_runner.h"
#include "caravan/step/sync_report.h"
#include "caravan/techniques/server/server_worker.h"
#include "caravan/techniques/server/step_control.h"

namespace caravan {

struct AsyncOptions {
  int64_t staleness = kUnbounded;  ///< steps that a worker may be ahead of the slowest; kUnbounded: any
  int num_micro_batches = 1;       ///< of a worker's step
  double clip_norm = 0;            ///< of a worker's own gradient; 0: no clipping, and pushes overlap backward
  std::function<double(int64_t step)> learning_rate = {};  ///< of a step, from 0
  std::chrono::milliseconds timeout{300'000};              ///< a rank that hears from nobody for so long gives up
  std::function<void()> on_event = {};  ///< called at the forward and backward of every unit; empty: none
};

/// Trains a model by a parameter server without a barrier (techniques/server/param_server.h, is_synchronous = false): every
/// rank is a worker that steps at its own pace. The servers apply each worker's gradient when it comes, with the
/// learning rate of the slowest worker's step, so n workers make n updates a step; the count of updates is the step of
/// the optimizer. With a bound, a worker waits while it is more than `staleness` steps ahead of the slowest, and the
/// values it reads have the updates of all steps up to so many before its own.
///
/// There is no thread beside the worker: a rank serves at the forward and backward of every unit, while it waits, and
/// in drains. So a server answers a worker once a unit, and a slow server slows down all workers: let the first ranks
/// be fast. In a drain all workers stop at the end of a step, nothing is on its way, and the state is as after a
/// synchronous step: for evaluation, checkpoints and collectives of any kind.
///
/// Sent in a step by all n ranks together: (n-1) x (bytes of the gradients + bytes of the leaves), as param_server; by
/// each worker 16 bytes, 8 for each bucket and server.
class AsyncTrainer final : private StepExchange {
 public:
  /// Every rank of the mesh calls it. `engine` and `optimizer` outlive this. Throws UsageError for a strategy whose
  /// leaves are not versions, or whose servers are not on one axis of all ranks.
  AsyncTrainer(Engine& engine, Optimizer& optimizer, AsyncOptions options);

  /// The micro-batches of one step of this worker; its loss_scale makes the loss the mean over this worker's targets.
  using Rows = std::function<StageRunner::Source(int64_t step)>;

  /// Trains until the slowest worker has done `drain_at` steps, or stop_requested is true on some rank, and drains.
  /// Every rank calls it with the same `drain_at`, after the slowest worker's step.
  /// Throws NumericsError on the rank whose loss or gradient is not finite: with clipping before anything of that
  /// gradient is pushed. CommError if a peer is lost, naming it, or if nothing comes for as long as the time-out.
  SyncReport run(int64_t drain_at, const Rows& rows, const std::function<bool()>& stop_requested = {});

  /// Steps that each worker has done. Others than 0 when a run is resumed.
  const std::vector<int64_t>& clocks() const noexcept { return clocks_; }
  void set_clocks(std::vector<int64_t> clocks) { clocks_ = std::move(clocks); }

  int64_t bytes_sent() const noexcept;                    ///< by this rank, beside what the mesh counts
  double wait_ms() const noexcept { return waited_ms_; }  ///< that this rank has waited for servers or workers

 private:
  void push(const Bucket& bucket, const at::Tensor& gradients) override;
  void pull(const Bucket& bucket) override;
  void poll() override;

  bool serve();
  void wait_until(const std::function<bool()>& is_done, const char* what);
  bool may_go_on(bool wants_drain);
  void step(const Rows& rows);
  SyncReport finish(bool wants_stop);

  Engine& engine_;
  Optimizer& optimizer_;
  AsyncOptions options_;
  ServerLinks links_;
  std::shared_ptr<Communicator> questions_;
  ShardServer server_;
  ServerWorker worker_;
  StepControl control_;
  StageRunner runner_;
  std::vector<int64_t> clocks_;
  int64_t clock_ = 0;  ///< of this worker
  double loss_ = 0;    ///< sums over its steps since the last drain; the loss over their targets
  double norm_ = 0;
  int64_t num_steps_ = 0;
  int64_t num_targets_ = 0;
  double waited_ms_ = 0;
};

}  // namespace caravan

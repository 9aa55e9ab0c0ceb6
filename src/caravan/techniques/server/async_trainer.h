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
  int64_t staleness = kUnbounded;  ///< how many steps a worker may be ahead of the slowest; kUnbounded: any
  int num_micro_batches = 1;       ///< of a worker's step
  double clip_norm = 0;            ///< for each worker's own gradient; 0: no clipping, and pushes overlap backward
  std::function<double(int64_t step)> learning_rate = {};  ///< learning rate of a step, from 0
  std::chrono::milliseconds timeout{300'000};              ///< timeout without any message
  std::function<void()> on_event = {};  ///< called at the forward and backward of every unit; may be empty
};

/// Trains a model by a parameter server without a barrier (techniques/server/param_server.h, is_synchronous = false):
/// every rank is a worker that steps at its own pace. The servers apply each worker's gradient on arrival, with the
/// learning rate of the slowest worker's step, so n workers make n updates a step; the optimizer counts updates as
/// steps. With a bound, a worker waits while it is more than `staleness` steps ahead of the slowest, and the values
/// that it reads include the updates of all steps up to `staleness` before its own.
///
/// Each rank has one thread: it serves at the forward and backward of every unit, while it waits, and in drains. So a
/// server answers a worker once a unit, and a slow server slows down all workers: put servers on fast ranks. In a drain
/// all workers stop at the end of a step, nothing is in flight, and the state is as after a synchronous step: for
/// evaluation, checkpoints and other collectives.
///
/// All n ranks together send in a step (n-1) x (bytes of the gradients + bytes of the unsharded parameters), as
/// param_server; each worker also 16 bytes, 8 for each bucket and server.
class AsyncTrainer final : private StepExchange {
 public:
  /// Every rank of the mesh calls it. `engine` and `optimizer` outlive this. Throws UsageError for a strategy whose
  /// unsharded parameters are not versions, or whose servers are not on one axis of all ranks.
  AsyncTrainer(Engine& engine, Optimizer& optimizer, AsyncOptions options);

  /// The micro-batches of one step of this worker; its loss_scale makes the loss the mean over this worker's targets.
  using Rows = std::function<StageRunner::Source(int64_t step)>;

  /// Trains until the slowest worker has done `drain_at` steps or stop_requested is true on some rank, then drains.
  /// Every rank calls it with the same `drain_at`, beyond the slowest worker's step. Throws NumericsError on the rank
  /// whose loss or gradient is not finite: with clipping before any of that gradient is pushed. CommError if a peer is
  /// lost, naming it, or if no message arrives within the timeout.
  SyncReport run(int64_t drain_at, const Rows& rows, const std::function<bool()>& stop_requested = {});

  /// Steps done by each worker. Not 0 at the start of a resumed run.
  const std::vector<int64_t>& clocks() const noexcept { return clocks_; }
  void set_clocks(std::vector<int64_t> clocks) { clocks_ = std::move(clocks); }

  int64_t bytes_sent() const noexcept;                    ///< bytes sent by this rank, except those that the mesh
                                                          ///< counts
  double wait_ms() const noexcept { return waited_ms_; }  ///< time that this rank waited for servers or workers

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
  int64_t clock_ = 0;  ///< step of this worker
  double loss_ = 0;    ///< summed over its steps since the last drain; the loss over their targets
  double norm_ = 0;
  int64_t num_steps_ = 0;
  int64_t num_targets_ = 0;
  double waited_ms_ = 0;
};

}  // namespace caravan

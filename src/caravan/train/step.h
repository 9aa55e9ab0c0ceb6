#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/executor.h"
#include "caravan/mesh/mesh.h"
#include "caravan/module/module.h"
#include "caravan/optim/optimizer.h"
#include "caravan/parallel/ddp.h"

namespace caravan {

/// What one rank trains on in a step: rows [first_row, first_row + rows) of the global batch.
struct TrainBatch {
  at::Tensor ids;     ///< [rows, context] int64
  at::Tensor labels;  ///< the same; labels[b, t] is the target of ids[b, t], -100 none
  int64_t first_row = 0;
  int64_t global_rows = 0;
  int64_t num_targets = 0;  ///< labels that are not -100, over the whole global batch: what the loss is divided by
};

struct StepResult {
  double loss = 0;       ///< mean over the target tokens of the global batch, before the update
  double grad_norm = 0;  ///< before clipping
  bool stop = false;     ///< some rank asked to stop after this step
};

/// One optimizer step of a model under data parallelism: the schedule's micro-batches, the gradients' sum, the norm,
/// clipping, the update. Every rank of the mesh calls `run` with its own batch.
class TrainStep final : private ActionHandler {
 public:
  struct Options {
    uint64_t seed = 0;
    int64_t num_micro_batches = 1;
    double clip_norm = 0;
  };
  /// Sees the reduced gradients, and the result, before they are clipped and used.
  using Inspect = std::function<void(const StepResult& result)>;

  /// All of it outlives this. `model`: run({ids, labels}) -> {loss}, scaled by ForwardContext::loss_scale.
  TrainStep(Module& model, Ddp& ddp, Optimizer& optimizer, const Mesh& mesh, const Options& options);

  /// `step` counts from 0 and keys the random numbers. Sends the gradients (Ddp), the norm where it must, and 16 bytes.
  /// Throws NumericsError on every rank, before the parameters are touched, if the loss or the norm is not finite: it
  /// names the step, the first rank and its first bad parameter.
  StepResult run(const TrainBatch& batch, int64_t step, double lr, bool stop_requested = false,
                 const Inspect& inspect = {});

  const Schedule& schedule() const noexcept { return schedule_; }

 private:
  void forward(const Action& action) override;
  void backward(const Action& action) override;
  void reduce(const Action& action) override;
  void update(const Action& action) override;

  /// Sums the losses and the requests to stop over the ranks.
  void agree();
  int64_t first_bad_gradient() const;
  [[noreturn]] void name_bad_numbers();

  Module& model_;
  Ddp& ddp_;
  Optimizer& optimizer_;
  const Mesh& mesh_;
  Options options_;
  Schedule schedule_;

  // Of the step that runs.
  const TrainBatch* batch_ = nullptr;
  const Inspect* inspect_ = nullptr;
  ForwardContext context_;
  double lr_ = 0;
  std::vector<at::Tensor> losses_;  ///< by micro-batch
  double local_loss_ = 0;
  StepResult result_;
};

}  // namespace caravan

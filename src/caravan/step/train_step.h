#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "caravan/engine/stages/stage_runner.h"
#include "caravan/mesh/mesh.h"
#include "caravan/module/module.h"
#include "caravan/optim/grad_norm.h"
#include "caravan/optim/loss_scale.h"
#include "caravan/optim/optimizer.h"
#include "caravan/optim/spike_guard.h"
#include "caravan/step/batch.h"

namespace caravan {

class Router;

struct StepResult {
  double loss = 0;        ///< mean over the target tokens of the global batch, before the update
  double grad_norm = 0;   ///< before clipping
  bool stop = false;      ///< some rank asked to stop after this step
  double loss_scale = 1;  ///< factor of the gradients
  /// In a pipeline: how long the ranks of each coordinate waited for other stages, on average.
  std::vector<double> waits_ms{};
  bool is_skipped = false;  ///< no update: the gradients overflowed, and the scale is smaller afterwards; or a spike
  std::string spike{};      ///< why it is a spike; "": it is none
};

/// One optimizer step of a model under a strategy: the passes of the micro-batches with their reductions, the norm,
/// clipping and the update. Every rank of the mesh calls `run` with its own batch.
class TrainStep final {
 public:
  struct Options {
    uint64_t seed = 0;
    int64_t num_micro_batches = 1;
    double clip_norm = 0;
    LossScale* loss_scale = nullptr;    ///< outlives the step; null: none
    SpikeGuard* spike_guard = nullptr;  ///< the same; not with `apart`
    /// An axis whose coordinates step independently: loss, norm and errors are those of the ranks that share this
    /// rank's coordinate. "": all ranks step together.
    std::string apart{};
  };
  /// Called with the reduced gradients (times StepResult::loss_scale) and the result, before the gradients are clipped
  /// and used, or refused because they are not finite.
  using Inspect = std::function<void(const StepResult& result)>;

  /// Both outlive this. The engine's model: run({ids, labels}) -> {loss}, scaled by ForwardContext::loss_scale. Every
  /// rank of the mesh calls it.
  TrainStep(Engine& engine, Optimizer& optimizer, const Options& options);

  /// `step` counts from 0 and keys the random numbers. Sends what the strategy sends, 560 bytes for the norm, and 16;
  /// if experts are balanced over the batch, also the traffic of one more forward pass and 8 bytes an expert. Throws
  /// NumericsError on every rank, before the parameters are touched, if the loss or the norm is not finite and no
  /// smaller loss scale helps: it names the step, the first rank and its first bad parameter.
  StepResult run(const TrainBatch& batch, int64_t step, double lr, bool stop_requested = false,
                 const Inspect& inspect = {});

 private:
  double scale() const { return options_.loss_scale == nullptr ? 1 : options_.loss_scale->value(); }
  Communicator& together() const { return ranks_ ? ranks_->comm() : mesh_.world(); }
  /// All-reduces the loss over the ranks that step together, and whether one of them asks to stop.
  void agree(double local_loss, StepResult& result) const;
  int64_t first_bad_gradient(const std::function<at::Tensor(const Parameter&)>& gradient_of) const;
  /// BalanceScope::batch: first runs a forward pass of the whole step to count the choices of its routers.
  void count_experts(const StageRunner::Source& source);
  /// For gradients that rest outside of the device: their norm adds up, and groups may step, during the step.
  void prepare_away();
  [[noreturn]] void name_bad_numbers(const StageRunner::Source& source, int64_t step, const StepResult& result);

  Engine& engine_;
  Optimizer& optimizer_;
  const Mesh& mesh_;
  Options options_;
  std::optional<MeshAxis> ranks_;  ///< ranks that step together; none: all
  StageRunner runner_;
  std::vector<Router*> routers_;
  std::optional<GradNorm> norm_;  ///< of this step, if gradients rest outside of the device
  double lr_ = 0;                 ///< of this step
  bool counts_experts_ = false;   ///< routers balance experts over the batch
};

}  // namespace caravan

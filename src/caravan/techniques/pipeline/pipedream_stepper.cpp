#include "caravan/techniques/pipeline/pipedream_stepper.h"

#include <cmath>
#include <map>

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"
#include "caravan/optim/grad_norm.h"

namespace caravan {
namespace {

class PipeDreamStepper final : public Stepper {
 public:
  explicit PipeDreamStepper(const StepperInputs& inputs) : Stepper(inputs), runner_(inputs.engine) {}

  StepReport advance(int64_t end, const BatchOf& batch_of, const StopRequested& stop_requested) override;
  /// The steps that fill and drain the stages, and two in which all versions of the weights exist.
  int64_t enough_steps() const override {
    const Engine& engine = in_.engine;
    const int64_t stages = engine.mesh()[engine.strategy().pipeline_axis].size();
    const int64_t micro_batches = in_.options.num_micro_batches;
    return (2 * stages + micro_batches - 1) / micro_batches + 2;
  }

 private:
  StageRunner runner_;
};

StepReport PipeDreamStepper::advance(int64_t end, const BatchOf& batch_of, const StopRequested& stop_requested) {
  const bool wants_stop = stop_requested && stop_requested();
  const int64_t first = step(), last = next_boundary(end), num_steps = last - first;
  const auto num_micro_batches = static_cast<int>(in_.options.num_micro_batches);
  std::map<int64_t, TrainBatch> batches;  // of the steps in flight
  const auto source = [&](int index) {
    const int64_t now = first + index / num_micro_batches;
    auto found = batches.find(now);
    if (found == batches.end()) found = batches.emplace(now, batch_of(now)).first;
    return micro_batch_of(found->second, num_micro_batches, index % num_micro_batches, in_.options.seed, now);
  };
  const auto update = [&](int micro_batch) {
    const int64_t now = first + micro_batch / num_micro_batches;
    in_.optimizer.step(in_.learning_rate.at(now));
    batches.erase(batches.begin(), batches.upper_bound(now));
  };
  const double own = runner_.run_updates(static_cast<int>(num_steps) * num_micro_batches, source, update);
  const Engine& engine = in_.engine;
  const Mesh& mesh = engine.mesh();
  const at::Tensor sums =
      at::tensor({engine.strategy().counts_loss(mesh) ? own : 0.0, wants_stop ? 1.0 : 0.0}, at::kDouble);
  all_reduce_async(mesh.world(), sums, sums, ReduceOp::sum, "loss").wait();
  StepReport report{.loss = sums[0].item<double>() / static_cast<double>(num_steps),
                    .grad_norm = grad_norm(engine.state(), mesh),
                    .rows = num_steps * in_.global_rows,
                    .total_rows = last * in_.global_rows,
                    .own_steps = num_steps,
                    .stop = sums[1].item<double>() > 0};
  if (!std::isfinite(report.loss) || !std::isfinite(report.grad_norm)) {
    throw NumericsError({"train", "loss",
                         fmt::format("is not finite between the steps {} and {} (mean loss {}, gradient norm {})",
                                     first + 1, last, report.loss, report.grad_norm),
                         mesh.where(),
                         "lower optimizer.lr or lengthen optimizer.warmup_steps; the last checkpoint is untouched"});
  }
  step_ = last;
  return report;
}

}  // namespace

std::unique_ptr<Stepper> make_pipedream_stepper(const StepperInputs& inputs) {
  return std::make_unique<PipeDreamStepper>(inputs);
}

}  // namespace caravan

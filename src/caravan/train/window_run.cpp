#include "caravan/train/window_run.h"

#include <cmath>

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"
#include "caravan/optim/grad_norm.h"

namespace caravan {

WindowRun::WindowRun(RunState& state, const Recipe& recipe, int64_t num_micro_batches)
    : state_(state),
      recipe_(recipe),
      num_micro_batches_(static_cast<int>(num_micro_batches)),
      runner_(state.engine()) {}

WindowReport WindowRun::run(int64_t end, const BatchOf& batch_of, bool stop_requested) {
  const int64_t first = state_.step;
  WindowReport report{.num_steps = next_drain(recipe_, state_.step, end) - first};
  std::map<int64_t, TrainBatch> batches;  // of the steps in flight
  const auto source = [&](int index) {
    const int64_t step = first + index / num_micro_batches_;
    auto found = batches.find(step);
    if (found == batches.end()) found = batches.emplace(step, batch_of(step)).first;
    return micro_batch_of(found->second, num_micro_batches_, index % num_micro_batches_,
                          static_cast<uint64_t>(recipe_.train.seed), step);
  };
  const auto update = [&](int last) {
    const int64_t step = first + last / num_micro_batches_;
    state_.optimizer().step(state_.learning_rate().at(step));
    batches.erase(batches.begin(), batches.upper_bound(step));
  };
  const double own = runner_.run_updates(static_cast<int>(report.num_steps) * num_micro_batches_, source, update);
  Engine& engine = state_.engine();
  const at::Tensor sums =
      at::tensor({engine.strategy().counts_loss(engine.mesh()) ? own : 0.0, stop_requested ? 1.0 : 0.0}, at::kDouble);
  all_reduce_async(engine.mesh().world(), sums, sums, ReduceOp::sum, "loss").wait();
  report.loss = sums[0].item<double>() / static_cast<double>(report.num_steps);
  report.stop = sums[1].item<double>() > 0;
  report.grad_norm = grad_norm(engine.state(), engine.mesh());
  state_.step += report.num_steps;
  if (std::isfinite(report.loss) && std::isfinite(report.grad_norm)) return report;
  throw NumericsError({"train", "loss",
                       fmt::format("is not finite between the steps {} and {} (mean loss {}, gradient norm {})",
                                   first + 1, state_.step, report.loss, report.grad_norm),
                       engine.mesh().where(),
                       "lower optimizer.lr or lengthen optimizer.warmup_steps; the last checkpoint is untouched"});
}

}  // namespace caravan

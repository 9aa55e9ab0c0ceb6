#include "caravan/train/async_run.h"

#include "caravan/nn/ignored_label.h"

namespace caravan {
namespace {

AsyncOptions async_options(const RunState& state, const Recipe& recipe, int64_t num_micro_batches) {
  return {
      .staleness = recipe.data_parallel.has(Trait::bounded_lead) ? recipe.data_parallel.whole("staleness") : kUnbounded,
      .num_micro_batches = static_cast<int>(num_micro_batches),
      .clip_norm = recipe.optimizer.clip_norm,
      .learning_rate = [&state](int64_t step) { return state.learning_rate().at(step); },
      .timeout = std::chrono::milliseconds(static_cast<int64_t>(recipe.comm.timeout_s * 1e3))};
}

}  // namespace

AsyncRun::AsyncRun(RunState& state, const Recipe& recipe, int64_t num_micro_batches)
    : state_(state),
      recipe_(recipe),
      num_micro_batches_(num_micro_batches),
      trainer_(state.engine(), state.optimizer(), async_options(state, recipe, num_micro_batches)) {
  const auto ranks = static_cast<size_t>(state.engine().mesh().size());
  if (state.clocks.size() != ranks) state.clocks.assign(ranks, state.step);
  trainer_.set_clocks(state.clocks);
}

DrainReport AsyncRun::run(int64_t end, const BatchOf& batch_of, const std::function<bool()>& stop_requested) {
  const auto rows = [&](int64_t step) -> StageRunner::Source {
    TrainBatch batch = batch_of(step);
    batch.num_targets = batch.labels.ne(kIgnoredLabel).sum().item<int64_t>();  // the mean over this worker's own
    return [this, batch, step](int index) {
      MicroBatch part =
          micro_batch_of(batch, num_micro_batches_, index, static_cast<uint64_t>(recipe_.train.seed), step);
      // What counts all tokens (routers) divides by the rows of all workers.
      part.context.gradient_scale *= static_cast<double>(batch.global_rows) / static_cast<double>(batch.ids.size(0));
      return part;
    };
  };
  DrainReport report = trainer_.run(next_drain(recipe_, state_.step, end), rows, stop_requested);
  state_.clocks = report.clocks;
  state_.step = report.slowest();
  return report;
}

}  // namespace caravan

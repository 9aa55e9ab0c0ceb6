#include "caravan/techniques/server/async_stepper.h"

#include <algorithm>

#include <c10/core/ScalarType.h>

namespace caravan {
namespace {

class AsyncStepper final : public Stepper {
 public:
  AsyncStepper(const StepperInputs& inputs, const AsyncOptions& options)
      : Stepper(inputs),
        lead_(std::max<int64_t>(options.staleness, 0)),
        trainer_(inputs.engine, inputs.optimizer, options) {}

  void start_at(int64_t step, const std::vector<int64_t>& clocks) override {
    step_ = step;
    const auto ranks = static_cast<size_t>(in_.engine.mesh().size());
    clocks_ = clocks.size() == ranks ? clocks : std::vector(ranks, step);
    trainer_.set_clocks(clocks_);
  }

  StepReport advance(int64_t end, const BatchOf& batch_of, const StopRequested& stop_requested) override;
  int64_t end_of_begun(int64_t end) const override { return next_boundary(end) + lead_; }
  bool fails_together() const override { return false; }
  int64_t bytes_sent() const override { return trainer_.bytes_sent(); }
  double wait_ms() const override { return trainer_.wait_ms(); }

 private:
  int64_t lead_;  ///< of the fastest worker, if it is bounded
  AsyncTrainer trainer_;
};

StepReport AsyncStepper::advance(int64_t end, const BatchOf& batch_of, const StopRequested& stop_requested) {
  const auto rows = [&](int64_t now) -> StageRunner::Source {
    return [this, batch = on_its_own(batch_of(now)), now](int index) {
      return micro_batch_of(batch, in_.options.num_micro_batches, index, in_.options.seed, now);
    };
  };
  const int64_t pushed = in_.optimizer.num_steps();
  const auto own = static_cast<size_t>(in_.engine.mesh().rank());
  const int64_t before = clocks()[own];
  const SyncReport drain = trainer_.run(next_boundary(end), rows, stop_requested);
  clocks_ = drain.clocks;
  step_ = drain.slowest();
  const int64_t worker_rows = in_.global_rows / in_.engine.mesh().size();
  return {.loss = drain.loss,
          .grad_norm = drain.grad_norm,
          .rows = (in_.optimizer.num_steps() - pushed) * worker_rows,
          .total_rows = drain.pushes() * worker_rows,
          .own_steps = std::max<int64_t>(clocks()[own] - before, 1),
          .stop = drain.stop,
          .drain = drain};
}

}  // namespace

std::unique_ptr<Stepper> make_async_stepper(const StepperInputs& inputs, AsyncOptions options) {
  options.num_micro_batches = static_cast<int>(inputs.options.num_micro_batches);
  options.clip_norm = inputs.options.clip_norm;
  options.learning_rate = [rate = inputs.learning_rate](int64_t step) { return rate.at(step); };
  return std::make_unique<AsyncStepper>(inputs, options);
}

int64_t most_bytes_in_flight(const Engine& engine) {
  if (engine.mesh().size() == 1) return 0;
  const FlatState& state = engine.state();
  const auto of_gradients = static_cast<int64_t>(c10::elementSize(state.gradients.scalar_type()));
  int64_t pushed = 0, received = 0, answered = 0;
  for (const Bucket& bucket : state.layout.buckets()) {
    if (!bucket.is_trained) continue;
    const at::Tensor& leaf = state.kept_leaves[static_cast<size_t>(bucket.index)];
    pushed += bucket.unsharded_count * of_gradients;
    received = std::max(received, bucket.sharded_count * of_gradients);
    answered += bucket.sharded_count * leaf.element_size();
  }
  return pushed + (engine.mesh().size() - 1) * (received + answered);
}

}  // namespace caravan

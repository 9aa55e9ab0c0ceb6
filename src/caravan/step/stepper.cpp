#include "caravan/step/stepper.h"

#include "caravan/base/error.h"

namespace caravan {
namespace {

class SyncStepper final : public Stepper {
 public:
  explicit SyncStepper(const StepperInputs& inputs)
      : Stepper(inputs), train_step_(inputs.engine, inputs.optimizer, inputs.options) {}

  StepReport advance(int64_t, const BatchOf& batch_of, const StopRequested& stop_requested) override {
    const TrainBatch batch = batch_of(step());
    const bool wants_stop = stop_requested && stop_requested();
    StepResult result = train_step_.run(batch, step(), in_.learning_rate.at(step()), wants_stop, inspect_);
    ++step_;
    StepReport report{.loss = result.loss,
                      .grad_norm = result.grad_norm,
                      .rows = in_.global_rows,
                      .total_rows = step() * in_.global_rows,
                      .stop = result.stop,
                      .waits_ms = std::move(result.waits_ms),
                      .spike = std::move(result.spike)};
    if (in_.options.loss_scale != nullptr) report.loss_scale = result.loss_scale;
    return report;
  }
  void set_inspect(Inspect inspect) override { inspect_ = std::move(inspect); }

 private:
  TrainStep train_step_;
  Inspect inspect_;
};

}  // namespace

void Stepper::start_at(int64_t step, const std::vector<int64_t>&) { step_ = step; }

void Stepper::set_inspect(Inspect) {
  throw UsageError({"train", "step", "none has a gradient of the whole model", in_.engine.mesh().where(),
                    "inspect steps after which all ranks continue together"});
}

std::unique_ptr<Stepper> make_sync_stepper(const StepperInputs& inputs) {
  return std::make_unique<SyncStepper>(inputs);
}

}  // namespace caravan

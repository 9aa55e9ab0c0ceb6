#include "caravan/train/evaluation/validate.h"

#include <optional>

#include "caravan/train/evaluation/evaluate.h"
#include "caravan/train/model/reference_model.h"

namespace caravan {
namespace {

/// The model has the average of its weights while this lives.
class AverageScope {
 public:
  explicit AverageScope(Optimizer& optimizer) : optimizer_(optimizer) { optimizer_.exchange_average(); }
  ~AverageScope() { optimizer_.exchange_average(); }
  AverageScope(const AverageScope&) = delete;
  AverageScope& operator=(const AverageScope&) = delete;

 private:
  Optimizer& optimizer_;
};

}  // namespace

bool validate(RunState& state, const Recipe& recipe, const ValidationRows& rows, const ValidationOptions& options,
              StepMetrics& metrics) {
  EvaluationOptions how{.rows = options.rows,
                        .max_windows = recipe.train.eval_batches * recipe.train.global_batch,
                        .counts_rows = options.reference != nullptr,
                        .has_accuracy = recipe.data.task.kind == "masked" || recipe.data.task.kind == "classify",
                        .num_classes = options.num_classes,
                        .stop_requested = options.stop_requested,
                        .progress = options.progress};
  LossPass pass;
  if (options.reference != nullptr) {
    pass = [&](StageRunner& runner, const at::Tensor& ids, const at::Tensor& labels, const ForwardContext&) {
      return options.reference->evaluate(runner, ids, labels);
    };
  }
  const std::optional<Evaluation> result = evaluate(state.engine(), rows, how, pass);
  // Also after an evaluation that was stopped, so that the next log line has none of its pairs.
  const auto rewards = options.reference == nullptr ? std::nullopt : options.reference->take_rewards();
  if (!result) return false;
  std::optional<double> of_average;
  if (state.optimizer().can_exchange_average()) {
    const AverageScope scope(state.optimizer());
    how.has_accuracy = false;
    const std::optional<Evaluation> average = evaluate(state.engine(), rows, how, pass);
    if (options.reference != nullptr) options.reference->take_rewards();
    if (!average) return false;
    of_average = average->loss;
  }
  metrics.val_loss = result->loss;
  if (rows.text_bytes() > 0) metrics.val_bits_per_byte = result->bits_per_byte;
  metrics.val_accuracy = rewards ? std::optional(rewards->accuracy) : result->accuracy;
  metrics.val_macro_f1 = result->macro_f1;
  metrics.val_loss_average = of_average;
  return true;
}

}  // namespace caravan

#include "caravan/train/evaluation/predictions.h"

#include <algorithm>
#include <memory>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/gather.h>

#include "caravan/base/error.h"
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/nn/loss/ignored_label.h"

namespace caravan {
namespace {

/// The most likely output at each position that has a target.
at::Tensor best_of_targets(const at::Tensor& logits, const at::Tensor& is_target) {
  if (!logits.defined()) return {};
  return logits.argmax(-1).to(is_target.device()).masked_select(is_target);
}

/// A hook on a head that gives it the positions with a target only.
class TargetsOnly {
 public:
  explicit TargetsOnly(Module& head)
      : hook_(head.add_hook([this](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
          if (positions_.defined()) {
            const at::Tensor& stream = inputs.front();
            const at::Tensor index = positions_.to(stream.device()).unsqueeze(2).expand({-1, -1, stream.size(2)});
            inputs.front() = stream.gather(1, index);
          }
          return next(std::move(inputs), context);
        })) {}
  TargetsOnly(const TargetsOnly&) = delete;
  TargetsOnly& operator=(const TargetsOnly&) = delete;

  /// The output of `pass`, [rows, most targets, vocabulary], as the predictions of the targets of `labels`.
  at::Tensor predict(const at::Tensor& labels, const std::function<at::Tensor()>& pass) {
    const at::Tensor is_target = labels.ne(kIgnoredLabel);
    const at::Tensor counts = is_target.sum(1);
    const int64_t most = std::max<int64_t>(counts.max().item<int64_t>(), 1);
    // Stable: the targets of a row come first, in their order.
    positions_ = at::argsort(is_target.logical_not().to(at::kByte), /*stable=*/true, 1).narrow(1, 0, most);
    const at::Tensor logits = pass();
    positions_ = at::Tensor();
    return best_of_targets(logits, at::arange(most, counts.options()).unsqueeze(0).lt(counts.unsqueeze(1)));
  }

 private:
  at::Tensor positions_{};  ///< [rows, most targets] in a pass, else undefined
  Hook hook_;
};

ForwardContext whole_sequences(ForwardContext context) {
  context.phase = Phase::generate;
  return context;
}

/// Whether this rank counts the rows of which it holds logits: of those that have the same rows, coordinate 0. Of a
/// pipeline one stage has logits.
bool counts_rows(const Engine& engine) {
  const Strategy& strategy = engine.strategy();
  return std::ranges::all_of(engine.mesh().axes(), [&](const MeshAxis& axis) {
    return axis.coord() == 0 || axis.name() == strategy.pipeline_axis || strategy.batch_layout[axis.name()].is_shard();
  });
}

}  // namespace

PredictionsOf predictions_of(Model& model) {
  const auto targets = std::make_shared<TargetsOnly>(*model.blocks().back());
  return [&model, targets](const at::Tensor& ids, const at::Tensor& labels, const ForwardContext& context) {
    return targets->predict(labels, [&] {
      const at::NoGradGuard no_grad;
      return model.run({ids}, whole_sequences(context)).front();
    });
  };
}

PredictionsOf predictions_of(Engine& engine) {
  // Where ranks divide the rows, a head has some of them only.
  const auto& plan = engine.strategy().plan;
  const bool has_all_rows = plan == nullptr || plan->num_row_parts() == 1;
  const auto targets = has_all_rows ? std::make_shared<TargetsOnly>(*engine.model().blocks().back()) : nullptr;
  const auto runner = std::make_shared<StageRunner>(engine);
  return [targets, runner, counts = counts_rows(engine)](const at::Tensor& ids, const at::Tensor& labels,
                                                         const ForwardContext& context) {
    const auto pass = [&] { return runner->evaluate({.ids = ids, .labels = {}, .context = whole_sequences(context)}); };
    const at::Tensor predictions =
        targets != nullptr ? targets->predict(labels, pass) : best_of_targets(pass(), labels.ne(kIgnoredLabel));
    return counts ? predictions : at::Tensor();
  };
}

int64_t& PredictionCounts::of_class(int64_t kind, int64_t label) {
  return counts_[static_cast<size_t>(2 + kind * num_classes_ + label)];
}

void PredictionCounts::add(const at::Tensor& labels, const at::Tensor& predictions) {
  const at::Tensor targets = labels.masked_select(labels.ne(kIgnoredLabel)).contiguous();
  if (targets.numel() != predictions.numel()) {
    throw InternalError({"evaluate", "predictions", "are not as many as targets", "", ""});
  }
  const auto* target = targets.const_data_ptr<int64_t>();
  const at::Tensor all = predictions.contiguous();
  const auto* prediction = all.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < targets.numel(); ++i) {
    const bool is_right = target[i] == prediction[i];
    counts_[0] += 1;
    counts_[1] += is_right ? 1 : 0;
    if (target[i] < num_classes_) {
      of_class(0, target[i]) += is_right ? 1 : 0;
      of_class(2, target[i]) += 1;
    }
    if (prediction[i] < num_classes_) of_class(1, prediction[i]) += 1;
  }
}

void PredictionCounts::sum_over(Communicator& world) {
  const Buffer buffer{counts_.data(), static_cast<int64_t>(counts_.size()), Dtype::int64};
  world.all_reduce(buffer, buffer, ReduceOp::sum, "right predictions");
}

double PredictionCounts::accuracy() const {
  return static_cast<double>(counts_[1]) / static_cast<double>(std::max<int64_t>(counts_[0], 1));
}

std::optional<double> PredictionCounts::macro_f1() const {
  double sum = 0;
  int64_t num_present = 0;
  for (int64_t label = 0; label < num_classes_; ++label) {
    const auto count = [&](int64_t kind) { return counts_[static_cast<size_t>(2 + kind * num_classes_ + label)]; };
    const int64_t present = count(1) + count(2);  // 2 tp + fp + fn
    if (present == 0) continue;
    ++num_present;
    sum += 2.0 * static_cast<double>(count(0)) / static_cast<double>(present);
  }
  if (num_present == 0) return std::nullopt;
  return sum / static_cast<double>(num_present);
}

}  // namespace caravan

#include "caravan/step/train_step.h"

#include <cmath>

#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"
#include "caravan/nn/experts/router.h"
#include "caravan/optim/grad_norm.h"

namespace caravan {
namespace {

/// With the digits of the log; "nan" and "inf" without a sign, which is meaningless.
std::string number_text(double value, int digits) {
  if (std::isfinite(value)) return fmt::format("{:.{}f}", value, digits);
  return std::isnan(value) ? "nan" : "inf";
}

/// The ranks that share this one's coordinate on `axis`.
MeshAxis ranks_beside(const Mesh& mesh, const std::string& axis) {
  std::vector<std::string> others;
  for (const MeshAxis& other : mesh.axes()) {
    if (other.name() != axis) others.push_back(other.name());
  }
  const std::string name = "beside " + axis;
  if (!others.empty()) return mesh.join(name, others)[name];
  return mesh.factor(axis, {{axis + " apart", mesh[axis].size()}, {name, 1}})[name];
}

/// What to do about a loss or gradients that are not finite. `scale` is that of fp16.
std::string way_out(const LossScale* scale, double loss) {
  if (scale == nullptr) return "lower optimizer.lr, lengthen optimizer.warmup_steps or set optimizer.clip_norm";
  // The loss is not scaled: with one that is not finite, activations exceed fp16.
  const bool is_too_large = !scale->is_dynamic() && scale->value() > 1 && std::isfinite(loss);
  return is_too_large ? "lower precision.loss_scale, or use \"dynamic\""
                      : "use precision.compute = \"bf16\", which holds larger values, or lower optimizer.lr";
}

}  // namespace

TrainStep::TrainStep(Engine& engine, Optimizer& optimizer, const Options& options)
    : engine_(engine), optimizer_(optimizer), mesh_(engine.mesh()), options_(options), runner_(engine) {
  if (!options.apart.empty()) ranks_ = ranks_beside(mesh_, options.apart);
  engine.table(static_cast<int>(options.num_micro_batches));  // the ranks compare it before the first step
  routers_ = routers_of(engine.model());
  for (const Router* router : routers_) counts_experts_ |= router->config().balances_batch();
}

void TrainStep::prepare_away() {
  const Strategy& strategy = engine_.strategy();
  if (strategy.gradients_tier != Tier::device) {
    engine_.gradients().set_watch([this](const Slot& slot, const at::Tensor& gradient) { norm_->add(slot, gradient); });
  }
  if (!strategy.steps_early) return;
  const bool waits = options_.clip_norm > 0 || options_.loss_scale != nullptr || options_.spike_guard != nullptr;
  if (waits || strategy.gradients_tier == Tier::device) {
    throw InternalError({"train", "step", "groups step early, but the step waits for the norm of all", "", ""});
  }
  engine_.set_group_step([this](int group) {
    const auto gradient_of = [this](const Bucket& bucket) { return engine_.gradients().result(bucket); };
    optimizer_.step_group(group, gradient_of, lr_);
    for (const Bucket& bucket : engine_.state().layout.buckets()) {
      if (bucket.group == group && bucket.is_trained) engine_.gradients().release(bucket);
    }
  });
}

StepResult TrainStep::run(const TrainBatch& batch, int64_t step, double lr, bool stop_requested,
                          const Inspect& inspect) {
  const int64_t num_rows = batch.ids.size(0);
  const int64_t micro_batches = options_.num_micro_batches;
  const bool splits = batch.unit == 0 ? num_rows % micro_batches == 0
                                      : num_rows % batch.unit == 0 && num_rows / batch.unit >= micro_batches;
  if (!splits) {
    throw ShapeError({"train", "batch",
                      fmt::format("{} rows do not split into {} micro-batches", num_rows, micro_batches), mesh_.where(),
                      "give every rank a multiple of them"});
  }
  const auto source = [&](int index) {
    return micro_batch_of(batch, options_.num_micro_batches, index, options_.seed, step, scale());
  };
  if (counts_experts_) count_experts(source);
  prepare_away();
  const bool steps_early = engine_.strategy().steps_early;
  norm_.emplace(mesh_, options_.apart);
  lr_ = lr;
  if (steps_early) {
    engine_.gradients().keep_stepped(inspect != nullptr);
    optimizer_.begin_groups();
  }
  const double local_loss = runner_.run_step(static_cast<int>(options_.num_micro_batches), source);
  optimizer_.finish();
  StepResult result{.loss = 0, .grad_norm = 0, .stop = stop_requested, .loss_scale = scale()};
  agree(local_loss / result.loss_scale, result);
  const bool is_away = engine_.strategy().gradients_tier != Tier::device;
  const double norm =
      is_away ? norm_->finish(together()) : grad_norm(engine_.state(), mesh_, options_.apart, together());
  result.grad_norm = norm / result.loss_scale;
  const bool is_finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  if (options_.loss_scale != nullptr && !options_.loss_scale->update(is_finite)) {
    result.is_skipped = options_.loss_scale->has_backed_off();
  }
  for (Router* router : routers_) {
    if (result.is_skipped) router->take_load();  // its numbers overflowed too
  }
  if (is_finite && options_.spike_guard != nullptr) {
    result.spike = options_.spike_guard->why_skipped(result.loss, result.grad_norm);
    result.is_skipped = !result.spike.empty();
  }
  if (inspect) inspect(result);
  if (!is_finite && !result.is_skipped) name_bad_numbers(source, step, result);
  if (result.is_skipped) {
    engine_.catch_up();  // no update of this step delays the one before further
  } else if (!steps_early) {
    optimizer_.start_step(lr, clip_scale(result.grad_norm, options_.clip_norm) / result.loss_scale);
  }
  return result;
}

void TrainStep::count_experts(const StageRunner::Source& source) {
  std::vector<double> counts;
  for (Router* router : routers_) {
    router->set_shares({});
    router->take_counted();  // left by a failed pass
  }
  {
    const EvaluationScope scope(engine_, /*of_step=*/true);
    for (int64_t i = 0; i < options_.num_micro_batches; ++i) runner_.evaluate(source(static_cast<int>(i)));
  }
  for (Router* router : routers_) {
    const std::vector<double> own = router->take_counted();
    counts.insert(counts.end(), own.begin(), own.end());
  }
  at::Tensor all = at::tensor(counts, at::kDouble);
  if (!engine_.strategy().counts_loss(mesh_)) all.zero_();  // another rank has the same tokens
  all_reduce_async(mesh_.world(), all, all, ReduceOp::sum, "tokens of experts").wait();
  const int64_t experts = all.numel() / static_cast<int64_t>(routers_.size());
  all = all.view({-1, experts});
  all.div_(all.sum(1, /*keepdim=*/true).clamp_min(1));  // no copies at all: meta tensors
  for (size_t i = 0; i < routers_.size(); ++i) {
    const double* shares = all.const_data_ptr<double>() + static_cast<int64_t>(i) * experts;
    routers_[i]->set_shares({shares, shares + experts});
  }
}

void TrainStep::agree(double local_loss, StepResult& result) const {
  const double summand = engine_.strategy().counts_loss(mesh_) ? local_loss : 0;
  std::vector<double> numbers{summand, result.stop ? 1.0 : 0.0};
  const std::string& axis = engine_.strategy().pipeline_axis;
  if (!axis.empty()) {
    numbers.resize(2 + static_cast<size_t>(mesh_[axis].size()), 0);
    numbers[2 + static_cast<size_t>(mesh_[axis].coord())] = runner_.wait_ms() * mesh_[axis].size() / together().size();
  }
  const at::Tensor sums = at::tensor(numbers, at::kDouble);
  all_reduce_async(together(), sums, sums, ReduceOp::sum, "loss").wait();
  const auto* all = sums.const_data_ptr<double>();
  result.loss = all[0];
  result.stop = all[1] > 0;
  result.waits_ms.assign(all + 2, all + sums.numel());
}

/// The index of the first parameter whose gradient is not finite; the number of parameters if there is none.
int64_t TrainStep::first_bad_gradient(const std::function<at::Tensor(const Parameter&)>& gradient_of) const {
  const std::vector<Parameter*> parameters = engine_.model().parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i]->requires_grad()) continue;
    const at::Tensor gradient = gradient_of(*parameters[i]);
    if (gradient.defined() && !at::isfinite(gradient).all().item<bool>()) return static_cast<int64_t>(i);
  }
  return static_cast<int64_t>(parameters.size());
}

/// The sum hides whose summand was bad: every rank recomputes its own without reducing it, and the ranks compare.
void TrainStep::name_bad_numbers(const StageRunner::Source& source, int64_t step, const StepResult& result) {
  const std::vector<Parameter*> parameters = engine_.model().parameters();
  const auto count = static_cast<int64_t>(parameters.size());
  const FlatState& state = engine_.state();
  const int64_t bad_in_sum =
      first_bad_gradient([&](const Parameter& parameter) { return state.layout.read(state.gradients, parameter); });
  const double local_loss = runner_.run_local_step(static_cast<int>(options_.num_micro_batches), source);
  const int64_t bad = first_bad_gradient([&](const Parameter& parameter) { return engine_.local_gradient(parameter); });
  // The smallest of rank x (count + 1) + parameter over the ranks that have one.
  const int64_t none = int64_t{mesh_.size()} * (count + 1);
  const bool is_bad = bad < count || !std::isfinite(local_loss);
  const at::Tensor first = at::tensor({is_bad ? mesh_.rank() * (count + 1) + bad : none}, at::kLong);
  all_reduce_async(together(), first, first, ReduceOp::min, "bad numbers").wait();
  const auto found = first.item<int64_t>();
  const int64_t index = found == none ? bad_in_sum : found % (count + 1);
  const std::string subject = index < count ? "gradient of " + parameters[static_cast<size_t>(index)]->name()
                              : std::isfinite(result.loss) ? "gradient norm"
                                                           : "loss";
  throw NumericsError(
      {"train", subject,
       fmt::format("is not finite at step {} (loss {}, gradient norm {})", step + 1, number_text(result.loss, 4),
                   number_text(result.grad_norm, 3)),
       found == none ? "only in the sum over ranks" : fmt::format("first on rank {}", found / (count + 1)),
       way_out(options_.loss_scale, result.loss) + "; the last checkpoint is untouched"});
}

}  // namespace caravan

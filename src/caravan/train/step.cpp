#include "caravan/train/step.h"

#include <cmath>

#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"
#include "caravan/optim/grad_norm.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan {
namespace {

/// This rank's loss is its summand of the global one.
Layout loss_layout(const Mesh& mesh) { return Layout::all(mesh, Partial{}); }

/// With the digits of the log; "nan" and "inf" without a sign, which says nothing.
std::string number_text(double value, int digits) {
  if (std::isfinite(value)) return fmt::format("{:.{}f}", value, digits);
  return std::isnan(value) ? "nan" : "inf";
}

}  // namespace

TrainStep::TrainStep(Module& model, Ddp& ddp, Optimizer& optimizer, const Mesh& mesh, const Options& options)
    : model_(model),
      ddp_(ddp),
      optimizer_(optimizer),
      mesh_(mesh),
      options_(options),
      schedule_(accumulate(static_cast<int>(options.num_micro_batches), static_cast<int>(ddp.buckets().size()))) {
  schedule_.validate(static_cast<int>(options.num_micro_batches), static_cast<int>(ddp.buckets().size()));
  losses_.resize(static_cast<size_t>(options.num_micro_batches));
}

StepResult TrainStep::run(const TrainBatch& batch, int64_t step, double lr, bool stop_requested,
                          const Inspect& inspect) {
  if (batch.ids.size(0) % options_.num_micro_batches != 0) {
    throw ShapeError(
        {"train", "batch",
         fmt::format("{} rows do not split into {} micro-batches", batch.ids.size(0), options_.num_micro_batches),
         mesh_.where(), "give every rank a multiple of them"});
  }
  batch_ = &batch;
  inspect_ = &inspect;
  lr_ = lr;
  local_loss_ = 0;
  result_ = {.loss = 0, .grad_norm = 0, .stop = stop_requested};
  context_ = {};
  context_.seed = options_.seed;
  context_.step = step;
  context_.loss_scale = 1.0 / static_cast<double>(std::max<int64_t>(batch.num_targets, 1));
  ddp_.begin_step();
  execute(schedule_, *this);
  return result_;
}

void TrainStep::forward(const Action& action) {
  const int64_t rows = batch_->ids.size(0) / options_.num_micro_batches;
  const int64_t first = action.micro_batch * rows;
  ForwardContext context = context_;
  context[Dim::batch] = {.offset = batch_->first_row + first, .global = batch_->global_rows};
  losses_[static_cast<size_t>(action.micro_batch)] =
      model_.run({batch_->ids.narrow(0, first, rows), batch_->labels.narrow(0, first, rows)}, context).front();
}

void TrainStep::backward(const Action& action) {
  at::Tensor& loss = losses_[static_cast<size_t>(action.micro_batch)];
  if (action.pays) ddp_.arm();
  caravan::backward(loss, loss_layout(mesh_));
  if (!loss.is_meta()) local_loss_ += loss.item<double>();
  loss = at::Tensor();
}

void TrainStep::reduce(const Action& action) { ddp_.finish(ddp_.buckets()[static_cast<size_t>(action.bucket)]); }

void TrainStep::agree() {
  const at::Tensor sums = at::tensor({local_loss_, result_.stop ? 1.0 : 0.0}, at::kDouble);
  all_reduce_async(mesh_.world(), sums, sums, ReduceOp::sum, "loss").wait();
  result_.loss = sums[0].item<double>();
  result_.stop = sums[1].item<double>() > 0;
}

void TrainStep::update(const Action&) {
  ddp_.finish_step();
  agree();
  result_.grad_norm = grad_norm(ddp_.state(), mesh_);
  if (!std::isfinite(result_.loss) || !std::isfinite(result_.grad_norm)) name_bad_numbers();
  if (*inspect_) (*inspect_)(result_);
  clip_grad_norm(ddp_.state(), result_.grad_norm, options_.clip_norm);
  optimizer_.step(lr_);
}

/// The index of the first parameter whose gradient is not finite; their number if there is none.
int64_t TrainStep::first_bad_gradient() const {
  const FlatState& state = ddp_.state();
  const std::vector<Parameter*> parameters = model_.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!state.layout.has(*parameters[i])) continue;
    const at::Tensor gradient = state.layout.view(state.gradients, *parameters[i]);
    if (!at::isfinite(gradient).all().item<bool>()) return static_cast<int64_t>(i);
  }
  return static_cast<int64_t>(parameters.size());
}

/// The sum hides whose summand was bad: every rank computes its own again, without paying, and they compare.
void TrainStep::name_bad_numbers() {
  const std::vector<Parameter*> parameters = model_.parameters();
  const auto count = static_cast<int64_t>(parameters.size());
  const int64_t bad_in_sum = first_bad_gradient();
  ddp_.begin_step();
  local_loss_ = 0;
  for (int m = 0; m < options_.num_micro_batches; ++m) {
    forward({.kind = Action::Kind::forward, .micro_batch = m});
    backward({.kind = Action::Kind::backward, .micro_batch = m});
  }
  const int64_t bad = first_bad_gradient();
  // The smallest of rank x (count + 1) + parameter over the ranks that have one.
  const int64_t none = int64_t{mesh_.size()} * (count + 1);
  const bool is_bad = bad < count || !std::isfinite(local_loss_);
  const at::Tensor first = at::tensor({is_bad ? mesh_.rank() * (count + 1) + bad : none}, at::kLong);
  all_reduce_async(mesh_.world(), first, first, ReduceOp::min, "bad numbers").wait();
  const auto found = first.item<int64_t>();
  const int64_t index = found == none ? bad_in_sum : found % (count + 1);
  const std::string subject = index < count ? "gradient of " + parameters[static_cast<size_t>(index)]->name()
                              : std::isfinite(result_.loss) ? "gradient norm"
                                                            : "loss";
  throw NumericsError(
      {"train", subject,
       fmt::format("is not finite at step {} (loss {}, gradient norm {})", context_.step + 1,
                   number_text(result_.loss, 4), number_text(result_.grad_norm, 3)),
       found == none ? "only in the sum over ranks" : fmt::format("first on rank {}", found / (count + 1)),
       "lower optimizer.lr, lengthen optimizer.warmup_steps or set optimizer.clip_norm; the last checkpoint is "
       "untouched"});
}

}  // namespace caravan

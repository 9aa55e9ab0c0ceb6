#include "caravan/optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

void check_range(const char* key, double value, double low, double high, bool high_is_valid) {
  if (value >= low && (value < high || (high_is_valid && value == high))) return;
  throw UsageError({"optimizer", key,
                    fmt::format("{} is outside [{}, {}{}", value, low, high, high_is_valid ? "]" : ")"), "",
                    fmt::format("choose a value from {} to {}", low, high)});
}

/// The two weight-decay groups of a flat buffer: with decay and without. Either may be empty.
std::pair<at::Tensor, at::Tensor> groups(const at::Tensor& flat, const FlatLayout& layout) {
  const int64_t decayed = layout.decayed_count();
  return {flat.narrow(0, 0, decayed), flat.narrow(0, decayed, layout.count() - decayed)};
}

}  // namespace

void Optimizer::step(double lr) {
  const at::NoGradGuard no_grad;
  ++num_steps_;
  update(lr);
}

AdamW::AdamW(FlatState& state, const AdamWOptions& options) : Optimizer(state), options_(options) {
  check_range("beta1", options.beta1, 0, 1, false);
  check_range("beta2", options.beta2, 0, 1, false);
  check_range("epsilon", options.epsilon, 0, 1, true);
  check_range("weight_decay", options.weight_decay, 0, 1e3, true);
  exp_avg_ = at::zeros_like(state.values);
  exp_avg_sq_ = at::zeros_like(state.values);
}

void AdamW::update(double lr) {
  const at::Tensor step = at::full({}, static_cast<double>(num_steps_), at::kFloat);
  const auto values = groups(state_.values, state_.layout);
  const auto gradients = groups(state_.gradients, state_.layout);
  const auto exp_avg = groups(exp_avg_, state_.layout);
  const auto exp_avg_sq = groups(exp_avg_sq_, state_.layout);
  const auto run = [&](auto member, double weight_decay) {
    if ((values.*member).numel() == 0 || state_.values.is_meta()) return;
    at::_fused_adamw_({values.*member}, {gradients.*member}, {exp_avg.*member}, {exp_avg_sq.*member}, {}, {step}, lr,
                      options_.beta1, options_.beta2, weight_decay, options_.epsilon, /*amsgrad=*/false,
                      /*maximize=*/false);
  };
  run(&std::pair<at::Tensor, at::Tensor>::first, options_.weight_decay);
  run(&std::pair<at::Tensor, at::Tensor>::second, 0.0);
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::state() const {
  return {{"exp_avg", exp_avg_}, {"exp_avg_sq", exp_avg_sq_}};
}

Sgd::Sgd(FlatState& state, const SgdOptions& options) : Optimizer(state), options_(options) {
  check_range("momentum", options.momentum, 0, 1, false);
  check_range("weight_decay", options.weight_decay, 0, 1e3, true);
  if (options.momentum > 0) momentum_ = at::zeros_like(state.values);
}

void Sgd::update(double lr) {
  at::Tensor direction = state_.gradients;
  if (options_.weight_decay > 0) {
    direction = direction.clone();
    groups(direction, state_.layout).first.add_(groups(state_.values, state_.layout).first, options_.weight_decay);
  }
  if (momentum_.defined()) direction = momentum_.mul_(options_.momentum).add_(direction);
  state_.values.add_(direction, -lr);
}

std::vector<std::pair<std::string, at::Tensor>> Sgd::state() const {
  if (!momentum_.defined()) return {};
  return {{"momentum", momentum_}};
}

}  // namespace caravan

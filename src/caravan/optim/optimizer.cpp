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

/// Calls f(range) for each stretch that is treated alike.
template <class F>
void for_each_range(const FlatState& state, const F& f) {
  if (state.values.is_meta()) return;
  for (const FlatLayout::Range& range : state.layout.ranges()) f(range);
}

at::Tensor part(const at::Tensor& flat, const FlatLayout::Range& range) {
  return flat.narrow(0, range.offset, range.count);
}

}  // namespace

void Optimizer::step(double lr) {
  const at::NoGradGuard no_grad;
  ++num_steps_;
  update(lr);
  state_.bump_version();
}

AdamW::AdamW(FlatState& state, const AdamWOptions& options) : Optimizer(state), options_(options) {
  check_range("beta1", options.beta1, 0, 1, false);
  check_range("beta2", options.beta2, 0, 1, false);
  check_range("epsilon", options.epsilon, 0, 1, true);
  check_range("weight_decay", options.weight_decay, 0, 1e3, true);
  exp_avg_ = at::zeros_like(state.gradients);
  exp_avg_sq_ = at::zeros_like(state.gradients);
}

void AdamW::update(double lr) {
  const at::Tensor step = at::full({}, static_cast<double>(num_steps_), at::kFloat);
  for_each_range(state_, [&](const FlatLayout::Range& range) {
    at::_fused_adamw_({part(state_.values, range)}, {part(state_.gradients, range)}, {part(exp_avg_, range)},
                      {part(exp_avg_sq_, range)}, {}, {step}, lr, options_.beta1, options_.beta2,
                      range.decays ? options_.weight_decay : 0.0, options_.epsilon, /*amsgrad=*/false,
                      /*maximize=*/false);
  });
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::state() const {
  return {{"exp_avg", exp_avg_}, {"exp_avg_sq", exp_avg_sq_}};
}

Sgd::Sgd(FlatState& state, const SgdOptions& options) : Optimizer(state), options_(options) {
  check_range("momentum", options.momentum, 0, 1, false);
  check_range("weight_decay", options.weight_decay, 0, 1e3, true);
  if (options.momentum > 0) momentum_ = at::zeros_like(state.gradients);
}

void Sgd::update(double lr) {
  for_each_range(state_, [&](const FlatLayout::Range& range) {
    const at::Tensor values = part(state_.values, range);
    at::Tensor direction = part(state_.gradients, range);
    if (options_.weight_decay > 0 && range.decays) direction = direction.add(values, options_.weight_decay);
    if (momentum_.defined()) direction = part(momentum_, range).mul_(options_.momentum).add_(direction);
    values.add_(direction, -lr);
  });
}

std::vector<std::pair<std::string, at::Tensor>> Sgd::state() const {
  if (!momentum_.defined()) return {};
  return {{"momentum", momentum_}};
}

}  // namespace caravan

#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/module/parameter.h"

namespace caravan {

/// For autograd functions that pass the gradients of parameters to Parameter::accumulate_grad instead of returning
/// them.
///
/// Such a function takes parameter.compute() as an input, so that there is a graph and needs_input_grad is right; saves
/// compute().detach(); and returns an undefined gradient for it. A gradient that can wait goes to
/// Parameter::accumulate_grad_later, which must capture detached tensors only: deferred work must not keep the graph
/// alive.
struct Accumulations : torch::CustomClassHolder {
  explicit Accumulations(std::vector<Parameter*> parameters_) : parameters(std::move(parameters_)) {}
  std::vector<Parameter*> parameters;
};

/// In forward: backward accumulates gradients of `parameters`, which outlive the graph, and gets undefined gradients as
/// such.
inline void will_accumulate(torch::autograd::AutogradContext* ctx, std::vector<Parameter*> parameters) {
  ctx->set_materialize_grads(false);
  ctx->saved_data["deposits"] = c10::IValue::make_capsule(c10::make_intrusive<Accumulations>(std::move(parameters)));
}

/// In backward: the parameters, in that order.
inline const std::vector<Parameter*>& accumulations_of(torch::autograd::AutogradContext* ctx) {
  return static_cast<const Accumulations&>(*ctx->saved_data["deposits"].toCapsule()).parameters;
}

/// In backward of y = x W^T + b, whose inputs after x are weight and bias, as in will_accumulate, without those that
/// are null: `add_*` are called later, for each that needs a gradient, with its sum and whether to overwrite it. They
/// capture detached tensors. Of several such layers with one x, those of the `layer`-th.
template <class AddWeight, class AddBias>
void accumulate_grad_later(torch::autograd::AutogradContext* ctx, const AddWeight& add_weight, const AddBias& add_bias,
                           size_t layer = 0) {
  const std::vector<Parameter*>& parameters = accumulations_of(ctx);
  const std::span before(parameters.data(), 2 * layer);
  const auto input = 1 + before.size() - static_cast<size_t>(std::ranges::count(before, nullptr));
  Parameter* weight = ctx->needs_input_grad(input) ? parameters[2 * layer] : nullptr;
  Parameter* of_bias = parameters[2 * layer + 1];
  Parameter* bias = of_bias != nullptr && ctx->needs_input_grad(input + 1) ? of_bias : nullptr;
  if (weight == nullptr && bias == nullptr) return;
  (weight != nullptr ? weight : bias)->accumulate_grad_later([=] {
    if (weight != nullptr) weight->accumulate_grad(add_weight);
    if (bias != nullptr) bias->accumulate_grad(add_bias);
  });
}

}  // namespace caravan

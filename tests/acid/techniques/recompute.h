#pragma once

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/engine/strategy.h"

namespace caravan::testing {

/// Test-only technique: nothing of a module's forward is kept but its inputs; its backward runs the forward again.
/// (Chen et al., "Training deep nets with sublinear memory cost", 2016.)
struct Region : torch::CustomClassHolder {
  Region(const Next& next_, const ForwardContext& context_) : next(next_), context(context_) {}
  Next next;
  ForwardContext context;
};

struct Recompute : torch::autograd::Function<Recompute> {
  using Variables = torch::autograd::variable_list;

  static Variables forward(torch::autograd::AutogradContext* ctx, const at::Tensor& /*anchor*/, at::TensorList inputs,
                           const c10::intrusive_ptr<Region>& region) {
    ctx->save_for_backward(inputs.vec());
    ctx->saved_data["region"] = c10::IValue::make_capsule(region);
    return region->next(inputs.vec(), region->context);
  }

  static Variables backward(torch::autograd::AutogradContext* ctx, const Variables& gradients) {
    const auto holder = ctx->saved_data["region"].toCapsule();
    auto& region = static_cast<Region&>(*holder);
    Variables inputs;
    for (const at::Tensor& saved : ctx->get_saved_variables()) {
      inputs.push_back(saved.detach().requires_grad_(saved.requires_grad()));
    }
    ForwardContext again = region.context;
    again.phase = Phase::recompute;
    const at::AutoGradMode grad(true);
    const Tensors outputs = region.next(inputs, again);
    torch::autograd::backward({outputs[0]}, {gradients[0]});
    Variables all{at::Tensor()};
    for (const at::Tensor& input : inputs) all.push_back(input.requires_grad() ? input.grad() : at::Tensor());
    all.emplace_back();
    return all;
  }
};

/// In every unit whose module is one of `modules`.
inline std::vector<Hook> recompute(Strategy& strategy, const std::vector<Module*>& modules) {
  std::vector<Hook> hooks;
  for (Strategy::Unit& unit : strategy.units) {
    if (std::find(modules.begin(), modules.end(), unit.module) == modules.end()) continue;
    unit.is_recomputed = true;
    const auto around = [](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
      if (!at::GradMode::is_enabled() || context.phase != Phase::forward) return next(std::move(inputs), context);
      const at::Tensor anchor = at::empty({0}).requires_grad_();  // the region has a backward also if no input has
      return Recompute::apply(anchor, at::TensorList(inputs), c10::make_intrusive<Region>(next, context));
    };
    hooks.push_back(unit.module->add_hook(around, Module::Place::outermost));
  }
  return hooks;
}

}  // namespace caravan::testing

#include "caravan/techniques/recompute/region.h"

#include <algorithm>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include "caravan/base/error.h"
#include "caravan/base/trace/trace.h"
#include "caravan/module/replay_state.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

[[noreturn]] void refuse_region(const Module& module, const std::string& fact, const char* action) {
  throw UsageError({"recompute", module.name().empty() ? "the model" : module.name(), fact, "", action});
}

struct Region : torch::CustomClassHolder {
  Region(Module& module_, const ForwardContext& context_, Next next_, bool draws)
      : module(module_), context(context_), next(std::move(next_)), before(module_, draws) {}

  /// Runs forward, and removes from `outputs` those whose gradients come here.
  variable_list run(const Tensors& inputs);

  Module& module;
  ForwardContext context;
  Next next;
  ReplayState before;
  Tensors outputs{};              ///< outputs of forward that autograd does not connect: passed on inputs, integers
  std::vector<size_t> connected;  ///< positions of the others
};

std::vector<int64_t> versions_of(const Tensors& tensors) {
  std::vector<int64_t> versions;
  for (const at::Tensor& tensor : tensors) {
    versions.push_back(tensor.defined() && !tensor.is_inference() ? static_cast<int64_t>(tensor._version()) : 0);
  }
  return versions;
}

variable_list Region::run(const Tensors& inputs) {
  const std::vector<int64_t> versions = versions_of(inputs);
  outputs = next(inputs, context);
  before.keep_changed();
  const std::vector<int64_t> now = versions_of(inputs);
  const auto changed = std::ranges::mismatch(versions, now).in1;
  if (changed != versions.end()) {
    refuse_region(module, fmt::format("its forward changes input {} in place", changed - versions.begin()),
                  "use operations that are not in place, or recompute it together with the module before it");
  }
  variable_list made;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto is_this = [&](const at::Tensor& input) { return input.is_same(outputs[i]); };
    if (!outputs[i].defined() || !outputs[i].is_floating_point() || std::ranges::any_of(inputs, is_this)) continue;
    connected.push_back(i);
    made.push_back(std::exchange(outputs[i], at::Tensor()));
  }
  return made;
}

struct Recompute : Function<Recompute> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& /*anchor*/, at::TensorList inputs,
                               const c10::intrusive_ptr<Region>& region) {
    ctx->set_materialize_grads(false);
    ctx->save_for_backward(inputs.vec());
    ctx->saved_data["region"] = c10::IValue::make_capsule(region);
    return region->run(inputs.vec());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto holder = ctx->saved_data["region"].toCapsule();
    auto& region = static_cast<Region&>(*holder);
    if (at::GradMode::is_enabled() || !torch::autograd::Engine::get_default_engine().is_checkpoint_valid()) {
      refuse_region(region.module,
                    "is recomputed, which supports neither gradients of gradients nor of chosen tensors alone",
                    "call backward() without inputs and create_graph, or do not recompute it");
    }
    variable_list inputs;
    for (const at::Tensor& saved : ctx->get_saved_variables()) {
      inputs.push_back(saved.defined() ? saved.detach().requires_grad_(saved.requires_grad()) : saved);
    }
    back_propagate(region, inputs, gradients);
    variable_list all{at::Tensor()};
    for (const at::Tensor& input : inputs) all.push_back(input.defined() ? input.grad() : input);
    all.emplace_back();
    return all;
  }

 private:
  static void back_propagate(Region& region, const variable_list& inputs, const variable_list& gradients) {
    ForwardContext again = region.context;
    again.phase = Phase::recompute;
    const at::AutoGradMode with_gradients(true);
    const Rewound rewound(region.before);  // as long as there is a graph that may have saved a buffer
    TraceSpan span(TraceLog::kCompute, "recompute", region.module.name(), {{"micro_batch", again.micro_batch}});
    Tensors outputs = region.next(inputs, again);
    span.end();
    variable_list ends;
    variable_list theirs;
    for (size_t i = 0; i < gradients.size(); ++i) {
      at::Tensor& output = outputs.at(region.connected[i]);
      if (!gradients[i].defined() || !output.requires_grad()) continue;
      ends.push_back(std::move(output));
      theirs.push_back(gradients[i]);
    }
    if (!ends.empty()) torch::autograd::backward(ends, theirs);
  }
};

bool is_trained(Module& module, const Tensors& inputs) {
  const auto needs = [](const at::Tensor& input) { return input.defined() && input.requires_grad(); };
  if (std::ranges::any_of(inputs, needs)) return true;
  return std::ranges::any_of(module.modules(), [](const Module* part) {
    return std::ranges::any_of(part->own_parameters(), [](const Parameter* slot) { return slot->requires_grad(); });
  });
}

}  // namespace

Tensors run_region(Module& module, Tensors inputs, const ForwardContext& context, const Next& next, bool draws) {
  const bool is_kept = at::GradMode::is_enabled() && context.phase == Phase::forward && context.layouts == nullptr;
  if (!is_kept || !is_trained(module, inputs)) return next(std::move(inputs), context);
  if (at::autocast::is_autocast_enabled(at::kCPU) || at::autocast::is_autocast_enabled(at::kCUDA)) {
    refuse_region(module, "is recomputed under autocast, which backward does not see",
                  "enable autocast inside of its forward, or use compute_dtype");
  }
  const auto region = c10::make_intrusive<Region>(module, context, next, draws);
  const at::Tensor anchor = at::empty({0}).requires_grad_();  // ensures a backward even if no input requires a gradient
  const variable_list made = Recompute::apply(anchor, at::TensorList(inputs), region);
  Tensors outputs = std::move(region->outputs);
  for (size_t i = 0; i < made.size(); ++i) outputs[region->connected[i]] = made[i];
  return outputs;
}

}  // namespace caravan

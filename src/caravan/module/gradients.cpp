#include "caravan/module/gradients.h"

#include <utility>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

namespace impl = torch::autograd::impl;

class DepositHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  DepositHook(Parameter& parameter, GradientSink& sink) : parameter_(parameter), sink_(sink) {}

  void operator()(const torch::autograd::Variable& leaf) override {
    at::Tensor gradient = std::move(leaf.mutable_grad());
    leaf.mutable_grad() = at::Tensor();
    sink_.deposit(parameter_, gradient);
  }

 private:
  Parameter& parameter_;
  GradientSink& sink_;
};

at::Tensor leaf_of(const Parameter& parameter) {
  return parameter.has_compute() && parameter.compute().is_leaf() ? parameter.compute() : parameter.rest();
}

}  // namespace

GradientDispatcher::GradientDispatcher(std::vector<Parameter*> parameters, GradientSink& sink) {
  std::erase_if(parameters, [](const Parameter* parameter) { return !parameter->requires_grad(); });
  for (const Parameter* parameter : parameters) {
    if (impl::post_acc_grad_hooks(leaf_of(*parameter)) == nullptr) continue;
    throw UsageError({.op = "gradients",
                      .subject = parameter->name(),
                      .fact = "its gradient hook is taken",
                      .where = "",
                      .action = "wrap a model in one technique at a time, and set no post-accumulate-grad hook of your "
                                "own"});
  }
  for (Parameter* parameter : parameters) {
    leaves_.push_back(leaf_of(*parameter));
    impl::set_post_acc_grad_hooks(leaves_.back(), std::make_unique<DepositHook>(*parameter, sink));
  }
}

GradientDispatcher::~GradientDispatcher() {
  for (at::Tensor& leaf : leaves_) impl::set_post_acc_grad_hooks(leaf, nullptr);
}

}  // namespace caravan

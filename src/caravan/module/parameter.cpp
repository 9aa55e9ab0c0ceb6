#include "caravan/module/parameter.h"

#include <functional>
#include <numeric>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "caravan/base/error.h"
#include "caravan/module/mixed_add.h"

namespace caravan {
namespace {

namespace impl = torch::autograd::impl;

/// Deposits what autograd accumulates, so that no rank holds a second full gradient.
class DepositHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit DepositHook(Parameter& parameter) : parameter_(parameter) {}

  void operator()(const torch::autograd::Variable& leaf) override {
    const at::Tensor gradient = std::move(leaf.mutable_grad());
    leaf.mutable_grad() = at::Tensor();
    if (gradient.defined()) parameter_.deposit(gradient);
  }

 private:
  Parameter& parameter_;
};

}  // namespace

Parameter::Parameter(std::string name, ParameterSpec spec) : name_(std::move(name)), spec_(std::move(spec)) {}

Parameter::~Parameter() {
  if (sink_ == nullptr) return;
  unhook(leaf_);  // a user's tensor outlives its slot
}

int64_t Parameter::num_elements() const noexcept {
  return std::accumulate(spec_.shape.begin(), spec_.shape.end(), int64_t{1}, std::multiplies<>());
}

void Parameter::set_requires_grad(bool requires_grad) {
  requires_grad_ = requires_grad;
  for (at::Tensor* tensor : {&rest_, &leaf_}) {
    if (tensor->defined()) tensor->set_requires_grad(requires_grad);
  }
  leaf_changed();
}

void Parameter::set_rest(at::Tensor rest, Layout layout) {
  rest_ = std::move(rest);
  rest_layout_ = std::move(layout);
  set_leaf(rest_, rest_layout_);
}

void Parameter::set_leaf(at::Tensor leaf, Layout layout) {
  if (sink_ != nullptr && leaf_.defined() && !leaf.is_same(leaf_)) unhook(leaf_);
  leaf_ = std::move(leaf);
  leaf_layout_ = std::move(layout);
  leaf_changed();
  if (sink_ != nullptr && requires_grad_) hook(leaf_);
}

const at::Tensor& Parameter::compute() const {
  if (!leaf_.defined()) {
    throw InternalError({"parameter", name_, "used before it has memory", "", "materialise the model first"});
  }
  if (!derivation_) return leaf_;
  if (!cut_.defined()) {
    const at::AutoGradMode grad(true);
    derived_ = derivation_(leaf_);
    derived_shape_ = derived_.sizes().vec();
    cut_ = derived_.detach().requires_grad_(derived_.requires_grad());
    const_cast<Parameter*>(this)->hook(cut_);
  }
  return cut_;
}

at::IntArrayRef Parameter::compute_shape() const {
  if (!derivation_) return leaf_.sizes();
  if (!derived_shape_) compute();
  return *derived_shape_;
}

void Parameter::set_derivation(Derivation derivation, Layout layout) {
  if (derivation && derivation_) {
    derivation = [first = std::move(derivation_), second = std::move(derivation)](const at::Tensor& leaf) {
      return second(first(leaf));
    };
  }
  derivation_ = std::move(derivation);
  compute_layout_ = std::move(layout);
  derived_shape_.reset();
  leaf_changed();
}

void Parameter::leaf_changed() noexcept {
  derived_ = at::Tensor();
  cut_ = at::Tensor();
}

void Parameter::deposit(const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  if (sink_ != nullptr) {
    const GradientSink::Sum sum = sink_->sum_of(*this);
    // Autograd adds in place where a leaf's .grad is this very memory (a user's zero_grad that keeps the tensor).
    const bool is_in_place = !gradient.is_meta() && gradient.data_ptr() == sum.tensor.data_ptr();
    if (!is_in_place && sum.is_empty) sum.tensor.copy_(gradient);
    if (!is_in_place && !sum.is_empty) add_mixed(sum.tensor, gradient);
    sink_->deposited(*this);
    return;
  }
  const at::Tensor of_leaf = leaf_gradient(gradient);
  at::Tensor& grad = leaf_.mutable_grad();
  if (grad.defined()) {
    grad.add_(of_leaf);
  } else {
    grad = of_leaf.is_same(gradient) ? gradient.clone() : of_leaf;
  }
}

void Parameter::deposit(const std::function<void(at::Tensor& sum, bool is_empty)>& add) {
  const at::NoGradGuard no_grad;
  if (sink_ != nullptr) {
    GradientSink::Sum sum = sink_->sum_of(*this);
    add(sum.tensor, sum.is_empty);
    sink_->deposited(*this);
    return;
  }
  const at::ScalarType type = compute().scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor sum = at::empty(compute().sizes(), compute().options().dtype(type).requires_grad(false));
  add(sum, true);
  deposit(sum);
}

void Parameter::deposit_later(std::function<void()> work) {
  if (sink_ == nullptr) return work();
  sink_->defer(*this, std::move(work));
}

at::Tensor Parameter::leaf_gradient(const at::Tensor& gradient) {
  if (!derivation_) return gradient.to(leaf_.scalar_type());
  compute();  // derives again if the leaf has changed meanwhile
  const at::AutoGradMode grad(true);
  return torch::autograd::grad({derived_}, {leaf_}, {gradient.to(derived_.scalar_type())}, /*retain_graph=*/true)
      .front();
}

void Parameter::check_no_sink() const {
  if (sink_ == nullptr && (!leaf_.defined() || impl::post_acc_grad_hooks(leaf_) == nullptr)) return;
  throw UsageError({.op = "gradients",
                    .subject = name_,
                    .fact = "its gradient hook is taken",
                    .action = "wrap a model in one technique at a time, and set no post-accumulate-grad hook of your "
                              "own"});
}

void Parameter::set_sink(GradientSink* sink) {
  if (sink == nullptr) {
    if (sink_ != nullptr) unhook(leaf_);
    if (cut_.defined()) unhook(cut_);
    sink_ = nullptr;
    return;
  }
  check_no_sink();
  sink_ = sink;
  if (requires_grad_ && leaf_.defined()) hook(leaf_);
  leaf_changed();
}

void Parameter::hook(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.requires_grad()) {
    impl::set_post_acc_grad_hooks(tensor, std::make_unique<DepositHook>(*this));
  }
}

void Parameter::unhook(const at::Tensor& tensor) {
  if (tensor.defined()) impl::set_post_acc_grad_hooks(tensor, nullptr);
}

}  // namespace caravan

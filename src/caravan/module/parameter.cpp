#include "caravan/module/parameter.h"

#include <functional>
#include <numeric>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "caravan/base/error.h"
#include "caravan/module/mixed_add.h"

namespace caravan {
namespace {

namespace impl = torch::autograd::impl;

/// Accumulates autograd's gradients in the sink, so that no rank holds a second full gradient.
class AccumulateGradHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit AccumulateGradHook(Parameter& parameter) : parameter_(parameter) {}

  void operator()(const torch::autograd::Variable& leaf) override {
    const at::Tensor gradient = std::move(leaf.mutable_grad());
    leaf.mutable_grad() = at::Tensor();
    if (gradient.defined()) parameter_.accumulate_grad(gradient);
  }

 private:
  Parameter& parameter_;
};

}  // namespace

Parameter::Parameter(std::string name, ParameterSpec spec) : name_(std::move(name)), spec_(std::move(spec)) {}

Parameter::~Parameter() {
  if (sink_ == nullptr) return;
  unhook(unsharded_);  // a user's tensor outlives its slot
}

int64_t Parameter::num_elements() const noexcept {
  return std::accumulate(spec_.shape.begin(), spec_.shape.end(), int64_t{1}, std::multiplies<>());
}

Box Parameter::in_whole(Box box) const {
  if (!tile_of_) return box;
  int64_t first = 0;  // row of the tile
  for (const TileOf::Part& part : tile_of_->parts) {
    const int64_t inside = box.offset.front() - first;
    if (inside >= 0 && inside + box.size.front() <= part.rows) {
      box.offset.front() = part.begin + inside;
      return box;
    }
    first += part.rows;
  }
  throw InternalError({"parameter", name_,
                       fmt::format("rows {} to {} are not of one part of {}", box.offset.front(),
                                   box.offset.front() + box.size.front(), tile_of_->name),
                       "", ""});
}

std::vector<PieceBox> Parameter::in_whole(std::vector<PieceBox> boxes) const {
  for (PieceBox& box : boxes) box.global = in_whole(std::move(box.global));
  return boxes;
}

void Parameter::set_requires_grad(bool requires_grad) {
  requires_grad_ = requires_grad;
  for (at::Tensor* tensor : {&sharded_, &unsharded_}) {
    if (tensor->defined()) tensor->set_requires_grad(requires_grad);
  }
  unsharded_changed();
}

void Parameter::set_sharded(at::Tensor rest, Layout layout) {
  sharded_ = std::move(rest);
  sharded_layout_ = std::move(layout);
  set_unsharded(sharded_, sharded_layout_);
}

void Parameter::set_unsharded(at::Tensor leaf, Layout layout) {
  if (sink_ != nullptr && unsharded_.defined() && !leaf.is_same(unsharded_)) unhook(unsharded_);
  unsharded_ = std::move(leaf);
  unsharded_layout_ = std::move(layout);
  unsharded_changed();
  if (sink_ != nullptr && requires_grad_) hook(unsharded_);
}

const at::Tensor& Parameter::compute() const {
  if (!unsharded_.defined()) {
    throw InternalError({"parameter", name_, "used before it has memory", "", "materialise the model first"});
  }
  if (!derivation_) return unsharded_;
  if (!cut_.defined()) {
    const at::AutoGradMode grad(true);
    derived_ = derivation_(unsharded_);
    derived_shape_ = derived_.sizes().vec();
    cut_ = derived_.detach().requires_grad_(derived_.requires_grad());
    const_cast<Parameter*>(this)->hook(cut_);
  }
  return cut_;
}

at::IntArrayRef Parameter::compute_shape() const {
  if (!derivation_) return unsharded_.sizes();
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
  unsharded_changed();
}

void Parameter::unsharded_changed() noexcept {
  derived_ = at::Tensor();
  cut_ = at::Tensor();
}

void Parameter::accumulate_grad(const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  if (sink_ != nullptr) {
    const GradientSink::Sum sum = sink_->sum_of(*this);
    // Autograd adds in place if the tensor's .grad is this very memory (a user's zero_grad that keeps the tensor).
    const bool is_in_place = !gradient.is_meta() && gradient.data_ptr() == sum.tensor.data_ptr();
    if (!is_in_place && sum.is_empty) sum.tensor.copy_(gradient);
    if (!is_in_place && !sum.is_empty) add_mixed(sum.tensor, gradient);
    sink_->accumulated(*this);
    return;
  }
  const at::Tensor of_leaf = unsharded_gradient(gradient);
  at::Tensor& grad = unsharded_.mutable_grad();
  if (grad.defined()) {
    grad.add_(of_leaf);
  } else {
    grad = of_leaf.is_same(gradient) ? gradient.clone() : of_leaf;
  }
}

void Parameter::accumulate_grad(const std::function<void(at::Tensor& sum, bool is_empty)>& add) {
  const at::NoGradGuard no_grad;
  if (sink_ != nullptr) {
    GradientSink::Sum sum = sink_->sum_of(*this);
    add(sum.tensor, sum.is_empty);
    sink_->accumulated(*this);
    return;
  }
  const at::ScalarType type = compute().scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor sum = at::empty(compute().sizes(), compute().options().dtype(type).requires_grad(false));
  add(sum, true);
  accumulate_grad(sum);
}

void Parameter::accumulate_grad_later(std::function<void()> work) {
  if (sink_ == nullptr) return work();
  sink_->defer(*this, std::move(work));
}

at::Tensor Parameter::unsharded_gradient(const at::Tensor& gradient) {
  if (!derivation_) return gradient.to(unsharded_.scalar_type());
  compute();  // derives again if the unsharded parameter has changed meanwhile
  const at::AutoGradMode grad(true);
  return torch::autograd::grad({derived_}, {unsharded_}, {gradient.to(derived_.scalar_type())}, /*retain_graph=*/true)
      .front();
}

void Parameter::check_no_sink() const {
  const bool has_hook = unsharded_.defined() && impl::get_autograd_meta(unsharded_) != nullptr &&
                        impl::post_acc_grad_hooks(unsharded_) != nullptr;
  if (sink_ == nullptr && !has_hook) return;
  throw UsageError({.op = "gradients",
                    .subject = name_,
                    .fact = "its gradient hook is taken",
                    .action = "wrap a model in one technique at a time, and set no post-accumulate-grad hook of your "
                              "own"});
}

void Parameter::set_sink(GradientSink* sink) {
  if (sink == nullptr) {
    if (sink_ != nullptr) unhook(unsharded_);
    if (cut_.defined()) unhook(cut_);
    sink_ = nullptr;
    return;
  }
  check_no_sink();
  sink_ = sink;
  if (requires_grad_ && unsharded_.defined()) hook(unsharded_);
  unsharded_changed();
}

void Parameter::hook(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.requires_grad()) {
    impl::set_post_acc_grad_hooks(tensor, std::make_unique<AccumulateGradHook>(*this));
  }
}

void Parameter::unhook(const at::Tensor& tensor) {
  if (tensor.defined()) impl::set_post_acc_grad_hooks(tensor, nullptr);
}

}  // namespace caravan

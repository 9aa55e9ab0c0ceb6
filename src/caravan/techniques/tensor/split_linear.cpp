#include "caravan/techniques/tensor/split_linear.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/base/error.h"
#include "caravan/module/plan/layout_table.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/linear.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// What the graph of some linears keeps alive.
struct SplitLinearTask : torch::CustomClassHolder {
  std::shared_ptr<const SplitProduct> product;
  std::vector<Parameter*> weights;
  std::vector<Parameter*> biases;  ///< of each weight; null: none
};
using TaskPtr = c10::intrusive_ptr<SplitLinearTask>;

/// `tensors`: the weights, then the existing biases. Outputs: y of each weight.
struct SplitLinearFunction : Function<SplitLinearFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList tensors, const TaskPtr& task) {
    const size_t count = task->weights.size();
    Tensors saved{x};
    for (size_t i = 0; i < count; ++i) saved.push_back(tensors[i].detach());
    variable_list ys = task->product->forward(x, Tensors(saved.begin() + 1, saved.end()));
    size_t next = count;
    for (size_t i = 0; i < count; ++i) {
      if (task->biases[i] != nullptr) ys[i].add_(tensors[next++]);
    }
    ctx->set_materialize_grads(false);
    ctx->saved_data["task"] = c10::IValue::make_capsule(task);
    ctx->save_for_backward(saved);
    return ys;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto task = c10::static_intrusive_pointer_cast<SplitLinearTask>(ctx->saved_data["task"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    const size_t count = task->weights.size();
    const size_t num_biases =
        count - static_cast<size_t>(std::count(task->biases.begin(), task->biases.end(), nullptr));
    variable_list gradients(2 + count + num_biases);
    Tensors weights, dys;
    std::vector<bool> needed;
    std::vector<Parameter*> parameters;
    size_t next = 1 + count;
    for (size_t i = 0; i < count; ++i) {
      const bool has_bias = task->biases[i] != nullptr;
      const bool needs_bias = has_bias && ctx->needs_input_grad(next);
      next += has_bias ? 1 : 0;
      if (!grads[i].defined()) continue;
      weights.push_back(saved[1 + i]);
      dys.push_back(grads[i].contiguous());
      needed.push_back(ctx->needs_input_grad(1 + i));
      parameters.push_back(task->weights[i]);
      if (needs_bias) accumulate_columns(*task->biases[i], dys.back());
    }
    if (dys.empty()) return gradients;
    const SplitProduct::Gradients of =
        task->product->backward(saved[0].detach(), weights, dys, ctx->needs_input_grad(0), needed);
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (needed[i]) parameters[i]->accumulate_grad(of.weights[i]);
    }
    gradients[0] = of.x;
    return gradients;
  }

 private:
  static void accumulate_columns(Parameter& bias, const at::Tensor& dy) {
    bias.accumulate_grad(dy.flatten(0, -2).sum(at::IntArrayRef{0}, /*keepdim=*/false, compute_type(dy.scalar_type())));
  }
};

/// Linears with the same input.
class SplitGroup {
 public:
  SplitGroup(std::vector<Linear*> members, std::shared_ptr<const SplitProduct> product)
      : members_(std::move(members)), product_(std::move(product)) {}

  at::Tensor run(Linear& linear, const at::Tensor& x, const ForwardContext& context) {
    if (context.layouts != nullptr) return typed(linear, x, *context.layouts);
    const auto known = results_.find(&linear);
    // Results that recomputation computes without a graph are of no use to a sibling outside of it.
    if (known != results_.end() && input_.is_same(x) && has_graph_ == at::GradMode::is_enabled()) {
      at::Tensor y = std::move(known->second);
      results_.erase(known);
      if (results_.empty()) input_ = at::Tensor();
      return y;
    }
    results_.clear();
    const bool is_first = &linear == members_.front();
    const std::vector<Linear*> all = is_first ? members_ : std::vector<Linear*>{&linear};
    Tensors ys = multiply(x, all);
    for (size_t i = 1; i < all.size(); ++i) results_.emplace(all[i], std::move(ys[i]));
    input_ = results_.empty() ? at::Tensor() : x;
    has_graph_ = at::GradMode::is_enabled();
    return std::move(ys.front());
  }

 private:
  Tensors multiply(const at::Tensor& x, const std::vector<Linear*>& linears) const {
    auto task = c10::make_intrusive<SplitLinearTask>();
    task->product = product_;
    Tensors tensors;
    for (Linear* linear : linears) {
      task->weights.push_back(&linear->weight());
      task->biases.push_back(linear->bias());
      tensors.push_back(checked(x, linear->weight()));
    }
    for (const Parameter* bias : task->biases) {
      if (bias != nullptr) tensors.push_back(bias->compute());
    }
    return SplitLinearFunction::apply(x, at::TensorList(tensors), task);
  }

  static const at::Tensor& checked(const at::Tensor& x, const Parameter& weight) {
    const at::Tensor& w = weight.compute();
    if (x.scalar_type() == w.scalar_type()) return w;
    throw ShapeError(
        {"linear", weight.name(),
         fmt::format("x is {} and the weight {}", c10::toString(x.scalar_type()), c10::toString(w.scalar_type())), "",
         "use the same dtype for both"});
  }

  at::Tensor typed(Linear& linear, const at::Tensor& x, LayoutTable& layouts) const {
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = linear.weight().compute().size(0);
    at::Tensor y = at::empty(shape, x.options());
    layouts.set(y, product_->result(layouts.of(x, linear.name()), linear.name()), "the output of " + linear.name());
    return y;
  }

  std::vector<Linear*> members_;
  std::shared_ptr<const SplitProduct> product_;
  at::Tensor input_;                       ///< of the first member, while results wait
  bool has_graph_ = false;                 ///< of the results
  std::map<Linear*, at::Tensor> results_;  ///< of the others
};

/// The groups of all modules that match one row.
using SplitGroups = std::map<const Module*, std::shared_ptr<SplitGroup>>;

std::vector<Linear*> children_of(Module& parent, const std::vector<std::string>& names) {
  std::vector<Linear*> linears;
  for (const std::string& name : names) linears.push_back(&dynamic_cast<Linear&>(parent.find(name)));
  return linears;
}

}  // namespace

at::Tensor matrix_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

at::Tensor empty_sum(int64_t rows, int64_t columns, const at::Tensor& like) {
  return at::empty({rows, columns}, like.options().dtype(compute_type(like.scalar_type())).requires_grad(false));
}

void add_split_linears(Plan& plan, const std::string& parent, const std::vector<std::string>& names,
                       const std::vector<Plan::ParameterRow>& parameters, std::shared_ptr<const SplitProduct> product) {
  const auto groups = std::make_shared<SplitGroups>();
  const Plan::Prepare prepare = [groups, names, product](Module& module) -> std::function<void()> {
    const std::vector<Linear*> members = children_of(module, names);
    const auto group = std::make_shared<SplitGroup>(members, product);
    for (const Linear* member : members) groups->emplace(member, group);
    return [groups, members] {
      for (const Linear* member : members) groups->erase(member);
    };
  };
  const Around around = [groups](Module& module, Tensors inputs, const ForwardContext& context, const Next& /*next*/) {
    auto& linear = dynamic_cast<Linear&>(module);
    const at::Tensor& x = inputs.front();
    return Tensors{linear.with_adapter(groups->at(&module)->run(linear, x, context), x, context)};
  };
  plan.rows.push_back({.pattern = parent, .prepare = prepare});
  for (const std::string& name : names) {
    plan.rows.push_back({.pattern = parent + "." + name, .parameters = parameters, .around = around});
  }
}

}  // namespace caravan

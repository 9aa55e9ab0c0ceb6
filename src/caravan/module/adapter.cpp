#include "caravan/module/adapter.h"

#include <algorithm>

#include <torch/nn/module.h>

#include "caravan/base/error.h"

namespace caravan {

ModuleAdapter::ModuleAdapter(std::shared_ptr<torch::nn::Module> module, Forward forward, const Mesh& mesh)
    : module_(std::move(module)), forward_(std::move(forward)) {
  if (!module_ || !forward_) throw UsageError({"adapter", "", "needs a module and a function that runs it", "", ""});
  for (const auto& item : module_->named_parameters()) {
    const at::Tensor& tensor = item.value();
    const auto is_this = [&](const Parameter* other) { return other->rest().is_same(tensor); };
    if (std::any_of(own_parameters().begin(), own_parameters().end(), is_this)) continue;
    Parameter& parameter = register_parameter(item.key(), {.shape = tensor.sizes().vec(), .decays = tensor.dim() > 1});
    parameter.set_rest(tensor, Layout::all(mesh, Invariant{}));
    parameter.set_computes_at_rest();
    parameter.set_compute(tensor);
    parameter.set_requires_grad(tensor.requires_grad());
  }
  if (parameters().empty()) {
    throw UsageError({"adapter", module_->name(), "has no parameters", "", "register them in its constructor"});
  }
}

std::vector<std::pair<std::string, at::Tensor>> ModuleAdapter::buffers() {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& item : module_->named_buffers()) all.emplace_back(item.key(), item.value());
  return all;
}

Tensors ModuleAdapter::forward(Tensors inputs, const ForwardContext&) { return forward_(std::move(inputs)); }

}  // namespace caravan

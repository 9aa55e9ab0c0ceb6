#include "caravan/module/module.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/module/initialise.h"

namespace caravan {

Module::~Module() = default;

Tensors Module::run(Tensors inputs, const ForwardContext& context) {
  for (auto& hook : pre_hooks_) hook(*this, inputs, context);
  Tensors outputs = forward(std::move(inputs), context);
  for (auto hook = post_hooks_.rbegin(); hook != post_hooks_.rend(); ++hook) (*hook)(*this, outputs, context);
  return outputs;
}

at::Tensor Module::operator()(const at::Tensor& input, const ForwardContext& context) {
  return run({input}, context).front();
}

std::vector<Module*> Module::modules() {
  std::vector<Module*> all{this};
  for (auto& child : children_) {
    for (Module* module : child->modules()) all.push_back(module);
  }
  return all;
}

std::vector<Parameter*> Module::parameters() const {
  std::vector<Parameter*> all = own_;
  for (const auto& child : children_) {
    for (Parameter* parameter : child->parameters()) {
      if (std::find(all.begin(), all.end(), parameter) == all.end()) all.push_back(parameter);
    }
  }
  return all;
}

Module& Module::find(const std::string& name) {
  std::vector<std::string> names;
  const std::string full = name_.empty() ? name : name_ + "." + name;
  for (Module* module : modules()) {
    if (module->name() == full) return *module;
    names.push_back(module->name());
  }
  throw UsageError({"module", name, "no module has this name", "", "the nearest is '" + nearest(full, names) + "'"});
}

Parameter& Module::register_parameter(std::string name, ParameterSpec spec) {
  for (const Parameter* other : own_) {
    if (other->name() == name) throw InternalError({"module", name, "two parameters have this name", "", ""});
  }
  if (!name_.empty()) name = name_ + "." + name;
  owned_.push_back(std::make_unique<Parameter>(std::move(name), std::move(spec)));
  own_.push_back(owned_.back().get());
  return *owned_.back();
}

Parameter& Module::share_parameter(Parameter& parameter) {
  own_.push_back(&parameter);
  return parameter;
}

void Module::adopt(const std::string& name, std::unique_ptr<Module> child) {
  for (const auto& other : children_) {
    if (other->name() == (name_.empty() ? name : name_ + "." + name)) {
      throw InternalError({"module", name, "two children have this name", "", ""});
    }
  }
  child->prepend_name(name);
  if (!name_.empty()) child->prepend_name(name_);
  children_.push_back(std::move(child));
}

void Module::prepend_name(const std::string& prefix) {
  name_ = name_.empty() ? prefix : prefix + "." + name_;
  for (auto& parameter : owned_) parameter->name_ = prefix + "." + parameter->name_;
  for (auto& child : children_) child->prepend_name(prefix);
}

void Module::materialise(const Mesh& mesh, const std::map<std::string, Layout>& layouts,
                         const MaterialiseOptions& options) {
  const std::vector<Parameter*> all = parameters();
  std::vector<std::string> names;
  for (const Parameter* parameter : all) names.push_back(parameter->name());
  for (const auto& [name, layout] : layouts) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw UsageError({"materialise", name, "a layout is given, but no parameter has this name", "",
                        "the nearest is '" + nearest(name, names) + "'"});
    }
  }
  const at::NoGradGuard no_grad;
  for (Parameter* parameter : all) {
    const auto given = layouts.find(parameter->name());
    const Layout layout =
        given == layouts.end() ? Layout::all(mesh, Invariant{}) : given->second.completed(mesh, Invariant{});
    const Box box = local_box(parameter->global_shape(), layout, mesh, parameter->name());
    at::Tensor piece = options.allocate
                           ? options.allocate(*parameter, box.size)
                           : at::empty(box.size, at::TensorOptions().dtype(at::kFloat).device(options.device));
    if (options.initialise && !piece.is_meta()) initialise(piece, *parameter, box, options.seed);
    parameter->set_rest(piece.detach().requires_grad_(parameter->requires_grad()), layout);
    parameter->set_compute(parameter->rest());
  }
}

Tensors Layer::forward(Tensors inputs, const ForwardContext& context) {
  if (inputs.size() != 1) {
    throw InternalError({"module", name(), fmt::format("takes one tensor, got {}", inputs.size()), "", ""});
  }
  return {forward(inputs.front(), context)};
}

}  // namespace caravan

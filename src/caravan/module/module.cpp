#include "caravan/module/module.h"

#include <algorithm>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/vector_math.h"
#include "caravan/base/text.h"
#include "caravan/module/initialise.h"
#include "caravan/module/meta/meta_kernels.h"

namespace caravan {
namespace {

[[maybe_unused]] const bool kRunsOnMeta = register_meta_kernels();

}  // namespace

/// The hooks of a module, outermost first. Replaced, never changed: a run continues with those that it began with.
struct Hook::List {
  std::shared_ptr<const std::vector<std::shared_ptr<const Around>>> hooks;
};

Hook& Hook::operator=(Hook&& other) noexcept {
  remove();
  list_ = std::move(other.list_);
  hook_ = std::move(other.hook_);
  return *this;
}

void Hook::remove() noexcept {
  const auto list = list_.lock();
  const auto hook = std::move(hook_);
  list_.reset();
  if (list == nullptr) return;
  auto rest = *list->hooks;
  std::erase(rest, hook);
  list->hooks = rest.empty() ? nullptr : std::make_shared<const std::vector<std::shared_ptr<const Around>>>(rest);
}

Tensors Next::operator()(Tensors inputs, const ForwardContext& context) const {
  if (hooks_ != nullptr && index_ < hooks_->size()) {
    Next inner = *this;
    ++inner.index_;
    return (*(*hooks_)[index_])(*module_, std::move(inputs), context, inner);
  }
  if (last_ == 0) return module_->forward(std::move(inputs), context);
  const std::vector<Module*> blocks = module_->blocks();
  for (size_t i = first_; i < last_; ++i) inputs = blocks[i]->run(std::move(inputs), context);
  return inputs;
}

Module::Module() : hooks_(std::make_shared<Hook::List>()) { settle_vector_math(); }
Module::~Module() = default;

Hook Module::add_hook(Around hook, Place place) {
  Hook handle;
  handle.list_ = hooks_;
  handle.hook_ = std::make_shared<const Around>(std::move(hook));
  Next::Hooks hooks;
  if (hooks_->hooks != nullptr) hooks = *hooks_->hooks;
  hooks.insert(place == Place::outermost ? hooks.begin() : hooks.end(), handle.hook_);
  hooks_->hooks = std::make_shared<const Next::Hooks>(std::move(hooks));
  return handle;
}

bool Module::has_hooks() const noexcept { return hooks_->hooks != nullptr; }

Tensors Module::run(Tensors inputs, const ForwardContext& context) {
  if (!has_hooks()) return forward(std::move(inputs), context);
  Next next;
  next.module_ = this;
  next.hooks_ = hooks_->hooks;
  return next(std::move(inputs), context);
}

Tensors Module::run_blocks(size_t first, size_t last, Tensors inputs, const ForwardContext& context) {
  const std::vector<Module*> all = blocks();
  if (first >= last || last > all.size()) {
    throw InternalError({"module", name_, fmt::format("blocks {} to {} of {}", first, last, all.size()), "", ""});
  }
  if (all.front() == this) return run(std::move(inputs), context);
  Next next;
  next.module_ = this;
  next.hooks_ = hooks_->hooks;
  next.first_ = first;
  next.last_ = last;
  return next(std::move(inputs), context);
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
  std::unordered_set<const Parameter*> known(all.begin(), all.end());
  for (const auto& child : children_) {
    for (Parameter* parameter : child->parameters()) {
      if (known.insert(parameter).second) all.push_back(parameter);
    }
  }
  return all;
}

std::vector<Module*> Module::children() const {
  std::vector<Module*> all;
  for (const auto& child : children_) all.push_back(child.get());
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

std::unique_ptr<Parameter> Module::release_parameter(Parameter& parameter) {
  std::erase(own_, &parameter);
  const auto found = std::ranges::find(owned_, &parameter, [](const auto& slot) { return slot.get(); });
  if (found == owned_.end()) return nullptr;
  std::unique_ptr<Parameter> released = std::move(*found);
  owned_.erase(found);
  return released;
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
    const std::vector<int64_t> shape = local_shape(parameter->global_shape(), layout, mesh, parameter->name());
    at::Tensor piece = options.allocate
                           ? options.allocate(*parameter, shape)
                           : at::empty(shape, at::TensorOptions().dtype(at::kFloat).device(options.device));
    if (options.initialise && !piece.is_meta()) {
      initialise(piece, *parameter, local_boxes(parameter->global_shape(), layout, mesh), options.seed);
    }
    parameter->set_sharded(piece.detach().requires_grad_(parameter->requires_grad()), layout);
  }
}

Tensors Layer::forward(Tensors inputs, const ForwardContext& context) {
  if (inputs.size() != 1) {
    throw InternalError({"module", name(), fmt::format("takes one tensor, got {}", inputs.size()), "", ""});
  }
  return {forward(inputs.front(), context)};
}

}  // namespace caravan

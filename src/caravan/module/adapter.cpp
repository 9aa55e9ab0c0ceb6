#include "caravan/module/adapter.h"

#include <algorithm>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

/// Whether rows of `weight` are looked up: that of an embedding. Output weights cannot be told from other matrices.
bool is_table(const torch::nn::Module& net, const at::Tensor& weight) {
  return std::ranges::any_of(net.modules(), [&](const std::shared_ptr<torch::nn::Module>& module) {
    const auto* embedding = module->as<torch::nn::EmbeddingImpl>();
    return embedding != nullptr && embedding->weight.is_same(weight);
  });
}

/// A unit for each child that computes something.
std::vector<ModuleAdapter::Unit> units_of_sequential(const std::shared_ptr<torch::nn::Module>& module) {
  const auto* sequential = module == nullptr ? nullptr : module->as<torch::nn::SequentialImpl>();
  if (sequential == nullptr) {
    throw UsageError({"adapter", module == nullptr ? "" : module->name(),
                      "is not a torch::nn::Sequential, and torch::nn::Module itself has no forward", "",
                      "pass a function that runs the module, or a list of units"});
  }
  std::vector<ModuleAdapter::Unit> units;
  for (const auto& child : module->named_children()) {
    torch::nn::AnyModule layer = *(sequential->begin() + static_cast<std::ptrdiff_t>(units.size()));
    units.push_back(
        {.name = child.key(), .modules = {child.value()}, .forward = [layer](const Tensors& inputs) mutable {
           return Tensors{layer.forward<at::Tensor>(inputs.at(0))};
         }});
  }
  return units;
}

}  // namespace

/// One unit: shares the slots of the adapter.
class ModuleAdapter::UnitModule final : public Module {
 public:
  UnitModule(Unit unit, const std::vector<Parameter*>& parameters, std::shared_ptr<SplitModule> split)
      : unit_(std::move(unit)), split_(std::move(split)) {
    for (Parameter* parameter : parameters) share_parameter(*parameter);
  }

  std::vector<std::pair<std::string, at::Tensor>> buffers() override {
    std::vector<std::pair<std::string, at::Tensor>> all;
    for (const auto& part : unit_.modules) {
      for (const auto& item : part->named_buffers()) all.emplace_back(unit_.name + "." + item.key(), item.value());
    }
    return all;
  }

 private:
  Tensors forward(Tensors inputs, const ForwardContext& context) override {
    if (split_ == nullptr) return unit_.forward(std::move(inputs));
    return split_->run(unit_.name, unit_.forward, inputs, context);
  }
  Unit unit_;
  std::shared_ptr<SplitModule> split_;
};

ModuleAdapter::~ModuleAdapter() = default;

ModuleAdapter::ModuleAdapter(std::shared_ptr<torch::nn::Module> module, Forward forward, const Mesh& mesh,
                             const std::vector<NamedLayout>& layouts)
    : module_(std::move(module)), forward_(std::move(forward)) {
  if (!module_ || !forward_) throw UsageError({"adapter", "", "needs a module and a function that runs it", "", ""});
  register_parameters(mesh, layouts);
}

ModuleAdapter::ModuleAdapter(std::shared_ptr<torch::nn::Module> module, std::vector<Unit> units, const Mesh& mesh,
                             const std::vector<NamedLayout>& layouts)
    : module_(std::move(module)) {
  if (!module_ || units.empty()) throw UsageError({"adapter", "", "needs a module and at least one unit", "", ""});
  register_parameters(mesh, layouts);
  register_units(std::move(units));
}

ModuleAdapter::ModuleAdapter(const std::shared_ptr<torch::nn::Module>& module, const Mesh& mesh,
                             const std::vector<NamedLayout>& layouts)
    : ModuleAdapter(module, units_of_sequential(module), mesh, layouts) {}

Parameter* ModuleAdapter::slot_of(const at::Tensor& tensor) const {
  const auto found = std::ranges::find_if(of_slots_, [&](const at::Tensor& other) { return other.is_same(tensor); });
  return found == of_slots_.end() ? nullptr : own_parameters()[static_cast<size_t>(found - of_slots_.begin())];
}

void ModuleAdapter::register_parameters(const Mesh& mesh, const std::vector<NamedLayout>& layouts) {
  if (!layouts.empty()) {
    split_ = std::make_shared<SplitModule>(layouts, mesh);
    split_->check_patterns(*module_);
    for (const auto& item : module_->named_parameters()) split_->layout_of(item.key(), item.value());  // throws
    if (!split_->splits()) split_ = nullptr;
  }
  for (const auto& item : module_->named_parameters()) {
    if (slot_of(item.value()) == nullptr) register_parameter_of(item.key(), item.value(), mesh);
  }
  for (const at::Tensor& tensor : module_->parameters()) tensors_.push_back(tensor.unsafeGetTensorImpl());
  if (own_parameters().empty()) {
    throw UsageError({"adapter", module_->name(), "has no parameters", "", "register them in its constructor"});
  }
}

void ModuleAdapter::register_parameter_of(const std::string& name, const at::Tensor& tensor, const Mesh& mesh) {
  Parameter& parameter = register_parameter(
      name,
      {.shape = tensor.sizes().vec(), .decays = tensor.dim() > 1, .matrices = is_table(*module_, tensor) ? 0 : 1});
  of_slots_.push_back(tensor);
  if (split_ == nullptr) {
    parameter.set_external();
    parameter.set_sharded(tensor, Layout::all(mesh, Invariant{}));
    parameter.set_requires_grad(tensor.requires_grad());
    return;
  }
  const at::Tensor piece = split_->piece_of_whole(name, tensor);
  parameter.set_external();
  parameter.set_sharded(piece.requires_grad_(tensor.requires_grad()), split_->layout_of(name, tensor));
  parameter.set_requires_grad(tensor.requires_grad());
  split_->add(parameter, tensor);
}

void ModuleAdapter::register_units(std::vector<Unit> units) {
  std::vector<const Parameter*> placed;
  for (Unit& unit : units) {
    if (!unit.forward) throw UsageError({"adapter", unit.name, "the unit has no function that runs it", "", ""});
    std::vector<Parameter*> own;
    for (const auto& part : unit.modules) {
      for (const at::Tensor& tensor : part->parameters()) {
        Parameter* const found = slot_of(tensor);
        if (found == nullptr) {
          throw UsageError({"adapter", unit.name, "has a parameter that the module does not have", "",
                            "name modules that are registered in " + module_->name()});
        }
        if (std::find(own.begin(), own.end(), found) == own.end()) own.push_back(found);
      }
    }
    placed.insert(placed.end(), own.begin(), own.end());
    units_.push_back(&register_module<UnitModule>(unit.name, unit, own, split_));
  }
  for (const Parameter* parameter : own_parameters()) {
    if (std::find(placed.begin(), placed.end(), parameter) != placed.end()) continue;
    throw UsageError({"adapter", parameter->name(), "is in no unit", "", "name its module in the unit that uses it"});
  }
}

std::vector<Module*> ModuleAdapter::blocks() { return units_.empty() ? Module::blocks() : units_; }

std::vector<std::pair<std::string, at::Tensor>> ModuleAdapter::buffers() {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& item : module_->named_buffers()) all.emplace_back(item.key(), item.value());
  return all;
}

void ModuleAdapter::check_parameters() const {
  const std::vector<at::Tensor> now = module_->parameters();
  const auto is_same = [](const at::Tensor& a, const c10::TensorImpl* b) { return a.unsafeGetTensorImpl() == b; };
  if (std::equal(now.begin(), now.end(), tensors_.begin(), tensors_.end(), is_same)) return;
  for (const auto& item : module_->named_parameters()) {
    if (std::find(tensors_.begin(), tensors_.end(), item.value().unsafeGetTensorImpl()) != tensors_.end()) continue;
    throw UsageError({"adapter", item.key(), "was added to the module, or exchanged, after it was adapted", "",
                      "register all parameters before the ModuleAdapter is made"});
  }
  throw UsageError({"adapter", module_->name(), "has lost a parameter since it was adapted", "",
                    "make the ModuleAdapter when all parameters are as they will stay"});
}

Tensors ModuleAdapter::forward(Tensors inputs, const ForwardContext& context) {
  check_parameters();
  if (units_.empty()) {
    return split_ == nullptr ? forward_(std::move(inputs)) : split_->run("", forward_, inputs, context);
  }
  for (Module* unit : units_) inputs = unit->run(std::move(inputs), context);
  return inputs;
}

}  // namespace caravan

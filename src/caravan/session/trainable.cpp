#include "caravan/session/trainable.h"

#include <map>

#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include "caravan/base/error.h"
#include "caravan/session/trainable_parts.h"

namespace caravan {

std::unique_ptr<ModuleAdapter> Trainable::adapted(const Mesh& mesh, const std::vector<NamedLayout>& layouts) const {
  if (model_ != nullptr) return nullptr;
  if (!units_.empty()) return std::make_unique<ModuleAdapter>(module_, units_, mesh, layouts);
  if (module_ != nullptr && module_->as<torch::nn::SequentialImpl>() != nullptr) {
    return std::make_unique<ModuleAdapter>(module_, mesh, layouts);
  }
  return std::make_unique<ModuleAdapter>(module_, forward_, mesh, layouts);
}

torch::nn::Module& TrainableParts::module_of(const Trainable& net, const char* op, const char* action) {
  if (net.model_ != nullptr) throw UsageError({op, "net", "is a Module of this library", "", action});
  return *net.module_;
}

void TrainableParts::check_free(const Trainable& net, const Mesh& mesh) {
  const auto adapter = net.adapted(mesh);
  for (const Parameter* parameter : adapter->parameters()) parameter->check_no_sink();
}

std::vector<TrainableParts::UnitFacts> TrainableParts::units(const Trainable& net, const Mesh& mesh) {
  const auto adapter = net.adapted(mesh);
  std::vector<UnitFacts> all;
  for (Module* block : adapter->blocks()) {
    UnitFacts& unit = all.emplace_back(UnitFacts{.name = block->name()});
    for (const Parameter* parameter : block->parameters()) {
      unit.shapes.push_back(parameter->global_shape());
      unit.parameters.push_back(parameter->name());
    }
  }
  return all;
}

Trainable TrainableParts::without_units(const Trainable& net, size_t begin, size_t count) {
  const auto stays = [&](size_t i) { return i < begin || i >= begin + count; };
  if (net.units_.empty()) {
    const auto* sequential = net.module_->as<torch::nn::SequentialImpl>();
    torch::nn::Sequential part;
    for (size_t i = 0; i < sequential->size(); ++i) {
      if (stays(i)) part->push_back(*(sequential->begin() + static_cast<std::ptrdiff_t>(i)));
    }
    return part;
  }
  const auto part = std::make_shared<torch::nn::Module>();
  std::vector<ModuleAdapter::Unit> units;
  for (size_t i = 0; i < net.units_.size(); ++i) {
    if (!stays(i)) continue;
    units.push_back(net.units_[i]);
    for (const auto& module : units.back().modules) {
      part->register_module(fmt::format("module{}", part->children().size()), module);
    }
  }
  return {part, std::move(units)};
}

std::vector<NamedLayout> TrainableParts::layouts_in(const Trainable& part, const Trainable& net,
                                                    const std::vector<NamedLayout>& layouts) {
  std::map<const c10::TensorImpl*, std::string> names;
  for (const auto& item : net.module_->named_parameters()) {
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  std::vector<NamedLayout> all;
  for (const auto& item : part.module_->named_parameters()) {
    all.push_back({item.key(), layout_for(names.at(item.value().unsafeGetTensorImpl()), layouts)});
  }
  return all;
}

at::Tensor TrainableParts::run(const Trainable& net, const at::Tensor& x, const Mesh& mesh) {
  return net.adapted(mesh)->run({x}, {}).at(0);
}

Trainable in_units(std::shared_ptr<torch::nn::Module> net, std::vector<ModuleAdapter::Unit> units) {
  if (net == nullptr || units.empty()) {
    throw UsageError({"in_units", "", "needs a module and at least one unit", "", "list the units in their order"});
  }
  return {std::move(net), std::move(units)};
}

}  // namespace caravan

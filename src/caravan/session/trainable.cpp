#include "caravan/session/trainable.h"

#include <torch/nn/modules/container/sequential.h>

#include "caravan/base/error.h"
#include "caravan/session/trainable_parts.h"

namespace caravan {

std::unique_ptr<ModuleAdapter> Trainable::adapted(const Mesh& mesh) const {
  if (model_ != nullptr) return nullptr;
  if (!units_.empty()) return std::make_unique<ModuleAdapter>(module_, units_, mesh);
  if (module_ != nullptr && module_->as<torch::nn::SequentialImpl>() != nullptr) {
    return std::make_unique<ModuleAdapter>(module_, mesh);
  }
  return std::make_unique<ModuleAdapter>(module_, forward_, mesh);
}

torch::nn::Module& TrainableParts::module_of(const Trainable& net, const char* op, const char* action) {
  if (net.model_ != nullptr) throw UsageError({op, "net", "is a Module of this library", "", action});
  return *net.module_;
}

void TrainableParts::check_free(const Trainable& net, const Mesh& mesh) {
  const auto adapter = net.adapted(mesh);
  for (const Parameter* parameter : adapter->parameters()) parameter->check_no_sink();
}

size_t TrainableParts::num_units(const Trainable& net, const Mesh& mesh) { return net.adapted(mesh)->blocks().size(); }

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

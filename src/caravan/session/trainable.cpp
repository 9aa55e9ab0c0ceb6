#include "caravan/session/trainable.h"

#include <torch/nn/modules/container/sequential.h>

#include "caravan/base/error.h"

namespace caravan {

std::unique_ptr<ModuleAdapter> Trainable::adapted(const Mesh& mesh) const {
  if (model_ != nullptr) return nullptr;
  if (!units_.empty()) return std::make_unique<ModuleAdapter>(module_, units_, mesh);
  if (module_ != nullptr && module_->as<torch::nn::SequentialImpl>() != nullptr) {
    return std::make_unique<ModuleAdapter>(module_, mesh);
  }
  return std::make_unique<ModuleAdapter>(module_, forward_, mesh);
}

Trainable in_units(std::shared_ptr<torch::nn::Module> net, std::vector<ModuleAdapter::Unit> units) {
  if (net == nullptr || units.empty()) {
    throw UsageError({"in_units", "", "needs a module and at least one unit", "", "list the units in their order"});
  }
  return {std::move(net), std::move(units)};
}

}  // namespace caravan

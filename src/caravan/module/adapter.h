#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "caravan/module/module.h"

namespace torch::nn {
class Module;
}

namespace caravan {

/// A user's own torch::nn::Module behind the seam: its parameters become slots under their own dotted names (they rest
/// invariant, with the values and memory they have; the tensors of the module are the leaves), its buffers are
/// buffers().
///
/// It runs as units, one after another: the parts of the model that a technique gathers, frees and reduces on their
/// own. torch::nn::Module has no hooks, so a unit is a function. One function for the whole module is one unit: all its
/// parameters are then gathered together, and reduced when backward has ended.
///
/// A parameter that is registered twice is one slot. A forward throws UsageError, naming it, for a parameter that was
/// added to the module afterwards: no technique would know of it.
class ModuleAdapter final : public Module {
 public:
  using Forward = std::function<Tensors(Tensors inputs)>;
  struct Unit {
    std::string name;
    /// Their parameters are those of the unit.
    std::vector<std::shared_ptr<torch::nn::Module>> modules;
    Forward forward;  ///< from the outputs of the unit before to the inputs of the next
  };

  /// `forward` runs the whole module. Throws UsageError if the module has no parameters, or `forward` is empty.
  ModuleAdapter(std::shared_ptr<torch::nn::Module> module, Forward forward, const Mesh& mesh);
  /// Running the units in order runs the module. Throws UsageError for a parameter of the module that is in no unit, or
  /// a unit without forward.
  ModuleAdapter(std::shared_ptr<torch::nn::Module> module, std::vector<Unit> units, const Mesh& mesh);
  /// A torch::nn::Sequential of layers that take one tensor and return one: a unit for each child. Throws UsageError
  /// for any other module, which has no forward of its own.
  ModuleAdapter(const std::shared_ptr<torch::nn::Module>& module, const Mesh& mesh);

  std::vector<Module*> blocks() override;
  std::vector<std::pair<std::string, at::Tensor>> buffers() override;

 private:
  class UnitModule;
  void register_parameters(const Mesh& mesh);
  void register_units(std::vector<Unit> units);
  void check_parameters() const;
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

  std::shared_ptr<torch::nn::Module> module_;
  std::vector<const c10::TensorImpl*> tensors_;  ///< of its parameters, when this was made
  Forward forward_;
  std::vector<Module*> units_;
};

}  // namespace caravan

#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "caravan/module/module.h"
#include "caravan/module/split_module.h"

namespace torch::nn {
class Module;
}

namespace caravan {

/// Adapts a user's torch::nn::Module to Module. Its parameters become slots under their own dotted names: the sharded
/// parameters are I, with their present values and memory, and the module's tensors are the unsharded parameters. Its
/// buffers are buffers().
///
/// It runs as units, one after another: the parts of the model that a technique gathers, frees and reduces separately.
/// torch::nn::Module has no hooks, so a unit is a function. One function for the whole module is one unit: all its
/// parameters are gathered together, and reduced when backward ends.
///
/// A parameter that is registered twice is one slot. A forward throws UsageError naming a parameter that was added to
/// the module afterwards, since no technique knows it.
class ModuleAdapter final : public Module {
 public:
  using Forward = std::function<Tensors(Tensors inputs)>;
  struct Unit {
    std::string name;
    /// Modules whose parameters belong to the unit.
    std::vector<std::shared_ptr<torch::nn::Module>> modules;
    Forward forward;  ///< maps the outputs of the previous unit to the inputs of the next
  };

  /// `forward` runs the whole module. Throws UsageError if the module has no parameters, or `forward` is empty. With
  /// `layouts`, parameters are split as they say (module/split_module.h, which says what it throws).
  ModuleAdapter(std::shared_ptr<torch::nn::Module> module, Forward forward, const Mesh& mesh,
                const std::vector<NamedLayout>& layouts = {});
  /// Running the units in order runs the module. Throws UsageError for a parameter of the module that is in no unit, or
  /// a unit without forward.
  ModuleAdapter(std::shared_ptr<torch::nn::Module> module, std::vector<Unit> units, const Mesh& mesh,
                const std::vector<NamedLayout>& layouts = {});
  /// A torch::nn::Sequential of layers that take one tensor and return one: a unit for each child. Throws UsageError
  /// for any other module, since it has no forward.
  ModuleAdapter(const std::shared_ptr<torch::nn::Module>& module, const Mesh& mesh,
                const std::vector<NamedLayout>& layouts = {});
  ~ModuleAdapter() override;

  /// Of several tensors, or of one: adapter({x, mask}, {}) returns all outputs.
  Tensors operator()(Tensors inputs, const ForwardContext& context) { return run(std::move(inputs), context); }
  template <std::same_as<at::Tensor> T>
  at::Tensor operator()(const T& input, const ForwardContext& context) {
    return Module::operator()(input, context);
  }

  std::vector<Module*> blocks() override;
  std::vector<std::pair<std::string, at::Tensor>> buffers() override;

 private:
  class UnitModule;
  void register_parameters(const Mesh& mesh, const std::vector<NamedLayout>& layouts);
  void register_parameter_of(const std::string& name, const at::Tensor& tensor, const Mesh& mesh);
  Parameter* slot_of(const at::Tensor& tensor) const;
  void register_units(std::vector<Unit> units);
  void check_parameters() const;
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

  std::shared_ptr<torch::nn::Module> module_;
  std::vector<const c10::TensorImpl*> tensors_;  ///< tensors of its parameters at construction
  std::vector<at::Tensor> of_slots_;             ///< the module's tensor of each slot
  std::shared_ptr<SplitModule> split_;           ///< null: parameters are whole
  Forward forward_;
  std::vector<Module*> units_;
};

}  // namespace caravan

#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "caravan/module/adapter.h"

namespace caravan {

/// What parallelize() trains: a Module of this library, a torch::nn::Sequential (a unit for each child), a
/// torch::nn::Module whose forward takes one tensor and returns one (all of it is one unit), or in_units() of one.
/// Converts from all of these.
class Trainable {
 public:
  /// `model` outlives what is made of it.
  Trainable(Module& model) : model_(&model) {}  // NOLINT: converts
  /// A holder of a module, as TORCH_MODULE makes it: torch::nn::Sequential, Net.
  template <class Holder>
  requires requires(const Holder& holder) {
    { holder.ptr()->forward(at::Tensor()) } -> std::convertible_to<at::Tensor>;
  }
  Trainable(const Holder& net) : Trainable(net.ptr()) {}  // NOLINT: converts
  template <class Impl>
  requires requires(Impl& net) {
    { net.forward(at::Tensor()) } -> std::convertible_to<at::Tensor>;
  }
  Trainable(const std::shared_ptr<Impl>& net)  // NOLINT: converts
      : module_(net), forward_([net](const Tensors& inputs) { return Tensors{net->forward(inputs.at(0))}; }) {}
  Trainable(std::shared_ptr<torch::nn::Module> module, std::vector<ModuleAdapter::Unit> units)
      : module_(std::move(module)), units_(std::move(units)) {}

 private:
  friend class ParallelModel;
  friend class TrainableParts;

  /// The module behind the seam; null: a Module of this library.
  std::unique_ptr<ModuleAdapter> adapted(const Mesh& mesh, const std::vector<NamedLayout>& layouts = {}) const;

  Module* model_ = nullptr;
  std::shared_ptr<torch::nn::Module> module_;
  ModuleAdapter::Forward forward_;
  std::vector<ModuleAdapter::Unit> units_;
};

/// A unit of a torch::nn::Module: what techniques gather, free, recompute and put on a stage on its own. `forward` is a
/// function of one tensor, which gets the first of those that the unit before returns, the others go on behind its
/// result; or of all of them (Tensors to Tensors).
template <class Forward>
ModuleAdapter::Unit unit(std::string name, std::vector<std::shared_ptr<torch::nn::Module>> modules, Forward forward) {
  if constexpr (std::is_invocable_r_v<Tensors, Forward, Tensors>) {
    return {std::move(name), std::move(modules), std::move(forward)};
  } else {
    return {std::move(name), std::move(modules), [forward = std::move(forward)](Tensors inputs) mutable {
              inputs.at(0) = forward(inputs[0]);
              return inputs;
            }};
  }
}
/// The same for a module whose forward takes one tensor: unit("head", net->head), and of a torch::nn::ModuleList
/// unit("blocks.0", net->blocks->ptr<BlockImpl>(0)).
template <class Impl>
requires requires(Impl& net) {
  { net.forward(at::Tensor()) } -> std::convertible_to<at::Tensor>;
}
ModuleAdapter::Unit unit(std::string name, const std::shared_ptr<Impl>& module) {
  return unit(std::move(name), {module}, [module](const at::Tensor& x) { return module->forward(x); });
}
template <class Holder>
requires requires(const Holder& holder) {
  { holder.ptr()->forward(at::Tensor()) } -> std::convertible_to<at::Tensor>;
}
ModuleAdapter::Unit unit(std::string name, const Holder& module) { return unit(std::move(name), module.ptr()); }

/// A torch::nn::Module as units that run one after another: running them in order is running the module. Every
/// parameter belongs to one. (C++ modules have no forward hooks, so units cannot be found inside.)
Trainable in_units(std::shared_ptr<torch::nn::Module> net, std::vector<ModuleAdapter::Unit> units);
template <class Holder>
requires requires(const Holder& holder) { holder.ptr(); }
Trainable in_units(const Holder& net, std::vector<ModuleAdapter::Unit> units) {
  return in_units(std::shared_ptr<torch::nn::Module>(net.ptr()), std::move(units));
}

}  // namespace caravan

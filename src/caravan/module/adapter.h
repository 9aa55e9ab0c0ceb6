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
/// invariant, with the values and memory they have; the two stay one), its buffers are buffers().
///
/// `forward` runs the module: torch::nn::Module has no forward of its own. A parameter that is registered twice is one
/// slot. Parameters added to the module afterwards are not seen. Parameter::computes_at_rest is true.
class ModuleAdapter final : public Module {
 public:
  using Forward = std::function<Tensors(Tensors inputs)>;

  /// Throws UsageError if the module has no parameters, or `forward` is empty.
  ModuleAdapter(std::shared_ptr<torch::nn::Module> module, Forward forward, const Mesh& mesh);

  std::vector<std::pair<std::string, at::Tensor>> buffers() override;

 private:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

  std::shared_ptr<torch::nn::Module> module_;
  Forward forward_;
};

}  // namespace caravan

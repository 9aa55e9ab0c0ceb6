#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "caravan/module/parameter.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing {

/// Slots with fp32 values of their own and no module around them.
class Parameters {
 public:
  struct Spec {
    std::string name;
    std::vector<int64_t> shape;
    bool decays = true;
  };

  Parameters(std::initializer_list<Spec> specs) {
    for (const Spec& spec : specs) {
      auto parameter =
          std::make_unique<Parameter>(spec.name, ParameterSpec{.shape = spec.shape, .decays = spec.decays});
      parameter->set_rest(random_tensor(spec.shape, owned_.size() + 1).to(at::kFloat).requires_grad_(), {});
      parameter->set_compute(parameter->rest());
      owned_.push_back(std::move(parameter));
    }
  }

  std::vector<Parameter*> all() const {
    std::vector<Parameter*> all;
    for (const auto& parameter : owned_) all.push_back(parameter.get());
    return all;
  }
  Parameter& at(const std::string& name) const {
    for (const auto& parameter : owned_) {
      if (parameter->name() == name) return *parameter;
    }
    throw std::out_of_range(name);
  }

 private:
  std::vector<std::unique_ptr<Parameter>> owned_;
};

}  // namespace caravan::testing

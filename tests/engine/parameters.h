#pragma once

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "caravan/comm/tensor.h"
#include "caravan/engine/engine.h"
#include "caravan/redistribute/piece.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing {

/// One unit of a fake model: y = x + x * (1 + sum of w * weights(w) over its parameters), so that the elements of a
/// parameter have different gradients. `reads` false: y = 2 x, and no parameter is used.
class Parameters final : public Module {
 public:
  struct Spec {
    std::string name;
    std::vector<int64_t> shape;
    bool decays = true;
    Parameter* shared = nullptr;  ///< another unit's
  };

  Parameters(std::initializer_list<Spec> specs) : Parameters(std::vector<Spec>(specs)) {}
  explicit Parameters(const std::vector<Spec>& specs) {
    for (const Spec& spec : specs) {
      if (spec.shared != nullptr) {
        share_parameter(*spec.shared);
      } else {
        register_parameter(spec.name, {.shape = spec.shape, .init = {Init::Kind::normal, 0.5}, .decays = spec.decays});
      }
    }
  }

  /// The parameter with this last part of its name.
  Parameter& at(const std::string& name) const {
    for (Parameter* parameter : own_parameters()) {
      if (parameter->name() == name || parameter->name().ends_with("." + name)) return *parameter;
    }
    throw std::out_of_range(name);
  }

  bool reads = true;
  std::function<void()> in_forward;   ///< called in it
  std::function<void()> in_backward;  ///< called in it, after the unit's backward event

  /// The factors of the elements: small integers.
  static at::Tensor weights(at::IntArrayRef shape) {
    return at::arange(c10::multiply_integers(shape), at::kDouble).remainder(7).sub(3).view(shape);
  }

 protected:
  Tensors forward(Tensors inputs, const ForwardContext&) override {
    if (in_forward) in_forward();
    const at::Tensor& x = inputs.at(0);
    at::Tensor factor = at::ones({}, x.options().requires_grad(false));
    for (const Parameter* parameter : own_parameters()) {
      if (reads) factor = factor + (parameter->compute() * weights(parameter->compute().sizes()).to(x.dtype())).sum();
    }
    at::Tensor part = x * factor;
    if (in_backward && part.requires_grad()) {
      part.register_hook([this](const at::Tensor&) { in_backward(); });
    }
    inputs[0] = x + part;
    return inputs;
  }
};

/// Units "u0", "u1", .. one after another; the loss is their output times `scale`.
class Chain final : public Module {
 public:
  explicit Chain(const std::vector<std::vector<Parameters::Spec>>& units) {
    for (const auto& specs : units) add(specs);
  }
  Parameters& add(const std::vector<Parameters::Spec>& specs) {
    units_.push_back(&register_module<Parameters>("u" + std::to_string(units_.size()), specs));
    return *units_.back();
  }
  Parameters& unit(size_t i) const { return *units_.at(i); }
  std::vector<Module*> blocks() override { return {units_.begin(), units_.end()}; }

  std::vector<size_t> order;  ///< in which forward runs the units; empty: in order

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override {
    for (size_t i = 0; i < (order.empty() ? units_.size() : order.size()); ++i) {
      inputs = units_[order.empty() ? i : order[i]]->run(std::move(inputs), context);
    }
    return inputs;
  }

 private:
  std::vector<Parameters*> units_;
};

/// Whether two tensors of one shape and dtype are bitwise equal.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && at::equal(a, b);
}

/// This rank's piece of `whole`.
inline at::Tensor piece_of(const at::Tensor& whole, const Layout& layout, const Mesh& mesh) {
  return caravan::piece_of(whole, local_boxes(whole.sizes().vec(), layout, mesh)).contiguous();
}

}  // namespace caravan::testing

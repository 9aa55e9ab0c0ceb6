#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/mesh/layout.h"

namespace caravan {

/// How a parameter starts. Element i of the global tensor depends on (seed, name, i) alone (see nn/random.h), so every
/// layout of it starts from the same values.
struct Init {
  enum class Kind : uint8_t { zeros, ones, normal } kind = Kind::zeros;
  double std = 0;  ///< of normal
};

struct ParameterSpec {
  std::vector<int64_t> shape;  ///< global
  Init init = {};
  bool decays = true;  ///< belongs to the optimizer's weight-decay group (matrices do; norms and biases do not)
};

/// A slot for one weight: what rests (and the optimizer updates), and what the layers compute with. How a technique
/// gets from one to the other is the technique; layers read compute() and know of nothing else.
///
///   - After materialise, compute() is rest(): a leaf that requires grad.
///   - A technique that keeps its own compute tensor calls set_compute (a bf16 copy, a gathered shard, a piece); it may
///   be a leaf
///     or the result of a differentiable redistribute of rest().
///   - A weight used in two places (a tied head) is one Parameter in both.
class Parameter {
 public:
  Parameter(std::string name, ParameterSpec spec);
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  /// The full dotted name from the model's root: the checkpoint key.
  const std::string& name() const noexcept { return name_; }
  const ParameterSpec& spec() const noexcept { return spec_; }
  const std::vector<int64_t>& global_shape() const noexcept { return spec_.shape; }
  int64_t num_elements() const noexcept;

  /// The piece at rest, laid out as rest_layout(). Undefined before materialise.
  const at::Tensor& rest() const noexcept { return rest_; }
  const Layout& rest_layout() const noexcept { return rest_layout_; }
  void set_rest(at::Tensor rest, Layout layout);

  /// What layers compute with. Throws InternalError naming the parameter if nothing is there: used while it is
  /// resharded.
  const at::Tensor& compute() const;
  bool has_compute() const noexcept { return compute_.defined(); }
  /// An undefined tensor takes the compute tensor away. Throws UsageError naming the parameter if it computes at rest
  /// and `compute` is another tensor.
  void set_compute(at::Tensor compute);
  /// True if whoever computes holds rest() itself and never looks at compute(): a user's own module.
  bool computes_at_rest() const noexcept { return computes_at_rest_; }
  void set_computes_at_rest() noexcept { computes_at_rest_ = true; }

  /// How many summands of its gradient one backward deposits (GradientSink): 1 unless a module deposits by itself.
  int num_deposits() const noexcept { return num_deposits_; }
  void set_num_deposits(int num_deposits) noexcept { num_deposits_ = num_deposits; }

  bool requires_grad() const noexcept { return requires_grad_; }
  void set_requires_grad(bool requires_grad);

 private:
  friend class Module;
  std::string name_;
  ParameterSpec spec_;
  at::Tensor rest_;
  at::Tensor compute_;
  Layout rest_layout_;
  bool requires_grad_ = true;
  bool computes_at_rest_ = false;
  int num_deposits_ = 1;
};

}  // namespace caravan

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/mesh/layout.h"
#include "caravan/module/gradients.h"

namespace caravan {

/// The initial values of a parameter. Element i of the global tensor depends only on (seed, name, i) (see
/// base/numeric/random.h), so every layout starts from the same values.
struct Init {
  /// row_norms: the norm of each row of a matrix whose own initial values are normal.
  enum class Kind : uint8_t { zeros, ones, normal, row_norms } kind = Kind::zeros;
  double std = 0;        ///< of normal; of row_norms, that of the matrix
  std::string matrix{};  ///< of row_norms: the name of the matrix within the parent of the parameter's module
  int64_t columns = 0;   ///< of the matrix
};

struct ParameterSpec {
  std::vector<int64_t> shape;  ///< global
  Init init = {};
  bool decays = true;  ///< belongs to the optimizer's weight-decay group (matrices do; norms and biases do not)
  /// Of two dims: how many matrices of equal size its rows are, one for each expert; 0: it is a table of vectors, such
  /// as embeddings and output weights. For optimizers that treat matrices apart.
  int64_t matrices = 1;
};

/// What an optimizer does otherwise with a parameter than with the others of its model.
struct UpdateRule {
  double lr_factor = 1;
  std::optional<double> weight_decay{};  ///< none: the optimizer's, if ParameterSpec::decays
  bool operator==(const UpdateRule&) const = default;
};

/// For a tile of a larger tensor (nn/tiles.h): which rows it has.
struct TileOf {
  struct Part {
    int64_t begin = 0;  ///< row of the larger tensor
    int64_t rows = 0;
  };
  std::string name;            ///< of the larger tensor
  std::vector<int64_t> shape;  ///< the same
  std::vector<Part> parts;     ///< the tile's rows, in order; no rank has rows of two parts
};

/// A slot for one weight, on three levels, each with a layout:
///
///   sharded    the piece that this rank owns and its optimizer updates (fp32); the whole parameter if nothing is
///              sharded
///   unsharded  the autograd leaf, in the dtype of the arithmetic. Data parallelism fills it from the sharded
///              parameter: a gather, a cast, or nothing if both are one tensor. Its identity is fixed; its
///              memory may be freed and reallocated
///   compute    what layers read: a differentiable function of the unsharded parameter (a tensor technique's
///              redistribute, a quantization, a mask); by default the unsharded parameter itself
///
/// The gradient goes the other way: layers accumulate gradients of compute (accumulate_grad); once they are complete,
/// the owner of the gradients takes the sum through the derivation to the unsharded parameter, and from its layout to
/// that of the sharded parameter. The gradient is reduced over exactly those axes on which the unsharded parameter is R
/// and the sharded one is I or S.
///
/// A weight used in two places (a tied head) is one Parameter in both. Not thread-safe.
class Parameter {
 public:
  Parameter(std::string name, ParameterSpec spec);
  ~Parameter();
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  /// The full dotted name from the model's root: the checkpoint key.
  const std::string& name() const noexcept { return name_; }
  const ParameterSpec& spec() const noexcept { return spec_; }
  const std::vector<int64_t>& global_shape() const noexcept { return spec_.shape; }
  int64_t num_elements() const noexcept;

  /// Of a tile: what it is cut from; else null.
  const TileOf* tile_of() const noexcept { return tile_of_.get(); }
  /// Called once, before the tile has memory.
  void set_tile_of(TileOf whole) { tile_of_ = std::make_unique<TileOf>(std::move(whole)); }
  /// Name and shape of the tensor in checkpoints and for initial values: of a tile, those of what it is cut from.
  const std::string& whole_name() const noexcept { return tile_of_ ? tile_of_->name : name_; }
  const std::vector<int64_t>& whole_shape() const noexcept { return tile_of_ ? tile_of_->shape : spec_.shape; }
  /// A box of this tensor as a box of that one. Throws InternalError if it has rows of several parts.
  Box in_whole(Box box) const;
  std::vector<PieceBox> in_whole(std::vector<PieceBox> boxes) const;

  bool requires_grad() const noexcept { return requires_grad_; }
  void set_requires_grad(bool requires_grad);

  const UpdateRule& update_rule() const noexcept { return update_rule_; }
  /// Call it before an engine takes the parameter.
  void set_update_rule(const UpdateRule& rule) noexcept { update_rule_ = rule; }

  /// Whether code outside this library, such as a user's module, holds the unsharded parameter and its values.
  bool is_external() const noexcept { return is_external_; }
  void set_external() noexcept { is_external_ = true; }

  // ---- the levels ----

  /// Undefined before materialise.
  const at::Tensor& sharded() const noexcept { return sharded_; }
  const Layout& sharded_layout() const noexcept { return sharded_layout_; }
  /// The unsharded parameter becomes the same tensor.
  void set_sharded(at::Tensor sharded, Layout layout);

  const at::Tensor& unsharded() const noexcept { return unsharded_; }
  const Layout& unsharded_layout() const noexcept { return unsharded_layout_; }
  void set_unsharded(at::Tensor unsharded, Layout layout);

  /// What layers read; an autograd leaf unless derived. A derived one is computed at its first use after the unsharded
  /// parameter has changed. Throws InternalError naming the parameter if there is no memory yet.
  const at::Tensor& compute() const;
  /// Its shape; also while the unsharded parameter has no memory, if the parameter was used before.
  at::IntArrayRef compute_shape() const;
  const Layout& compute_layout() const noexcept { return derivation_ ? compute_layout_ : unsharded_layout_; }
  /// A differentiable function; called with gradients enabled. It must not return a tensor that does not depend on its
  /// argument. Collective if it communicates: then every rank uses the parameter, in the same order.
  using Derivation = std::function<at::Tensor(const at::Tensor& leaf)>;
  /// Empty: compute() is the unsharded parameter. After an earlier derivation: applied to its result.
  void set_derivation(Derivation derivation, Layout layout);
  bool is_derived() const noexcept { return static_cast<bool>(derivation_); }
  /// Call it when the unsharded parameter has other values, or none: drops a derived tensor.
  void unsharded_changed() noexcept;

  // ---- gradients ----

  /// Adds a summand of the gradient of compute(): of its shape, any floating dtype; keeps no reference to it. Without a
  /// sink it is added to the unsharded parameter's .grad, as autograd does.
  void accumulate_grad(const at::Tensor& gradient);
  /// The same for a summand that can be added in place: `add` gets the sum and whether to overwrite it.
  void accumulate_grad(const std::function<void(at::Tensor& sum, bool is_empty)>& add);
  /// For a summand that forward computes, while a step is open: see GradientSink::added_early.
  GradientSink::Sum early_sum() { return sink_->sum_of(*this); }
  void added_early() { sink_->added_early(*this); }
  void confirmed() { sink_->confirmed(*this); }
  void withdrawn() { sink_->withdrawn(*this); }
  /// The current step of the sink; 0: none, or no sink.
  int64_t open_step() const noexcept { return sink_ == nullptr ? 0 : sink_->open_step(); }
  /// Runs `work`, which accumulates a gradient, now or when the sink chooses.
  void accumulate_grad_later(std::function<void()> work);
  /// The gradient of the unsharded parameter for a gradient of compute(): the backward of the derivation, in the
  /// unsharded dtype.
  at::Tensor unsharded_gradient(const at::Tensor& gradient);

  /// Throws UsageError if a sink already takes the gradients, or the unsharded parameter's hook is in use.
  void check_no_sink() const;
  /// Makes `sink` the destination of all gradients, including those that autograd computes for compute(). Null: none.
  /// Throws as check_no_sink().
  void set_sink(GradientSink* sink);

 private:
  friend class Module;
  void hook(const at::Tensor& tensor);
  void unhook(const at::Tensor& tensor);

  std::string name_;
  ParameterSpec spec_;
  std::unique_ptr<TileOf> tile_of_;
  bool requires_grad_ = true;
  bool is_external_ = false;
  UpdateRule update_rule_{};
  at::Tensor sharded_;
  Layout sharded_layout_;
  at::Tensor unsharded_;
  Layout unsharded_layout_;
  Derivation derivation_;
  Layout compute_layout_;
  mutable at::Tensor derived_;  ///< derivation_(unsharded_), with its graph
  mutable std::optional<std::vector<int64_t>> derived_shape_;
  mutable at::Tensor cut_;  ///< the same without its graph: a separate autograd leaf
  GradientSink* sink_ = nullptr;
};

}  // namespace caravan

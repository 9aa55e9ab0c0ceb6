#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "caravan/redistribute/infer.h"

namespace caravan {

class Parameter;

/// The layouts of the activations of a dry run, by tensor. Layers and the typed functions of nn/ops report what they
/// computed; the table applies the typing rule (redistribute/infer.h), so that a plan is checked before anything runs.
///
/// Entries are keyed by tensor object: a view, even of the same shape, is another tensor and needs its own entry.
class LayoutTable {
 public:
  /// For a pass with gradients; without them everything is a constant, R and I are the same, and R is called I.
  explicit LayoutTable(bool has_gradients = true) : has_gradients_(has_gradients) {}
  bool has_gradients() const noexcept { return has_gradients_; }

  /// An operand: an activation, whose layout is looked up, or a parameter with the layout of its compute().
  struct Operand {
    Operand(const at::Tensor& tensor) : tensor(&tensor) {}          // NOLINT: an operand is a tensor
    Operand(const Parameter& parameter) : parameter(&parameter) {}  // NOLINT: or a parameter
    const at::Tensor* tensor = nullptr;
    const Parameter* parameter = nullptr;
  };

  /// Replaces an earlier layout. `origin` names the source of the tensor in messages: "input 0 of the model"; "": as
  /// before.
  void set(const at::Tensor& tensor, Layout layout, std::string origin = {});
  bool has(const at::Tensor& tensor) const noexcept;
  /// Throws LayoutError naming `what`, the module that takes the tensor, if no typed operation produced it.
  const Layout& of(const at::Tensor& tensor, std::string_view what) const;
  /// "the output of blocks.0.mlp"; for an unknown tensor its shape.
  std::string origin(const at::Tensor& tensor) const;

  /// Gives `result`, computed by `op` from the operands in module `what`, the layout that the typing rule infers. It
  /// may be one of the operands. Integer and boolean tensors are constants. Throws LayoutError as of(), and for
  /// operands that do not fit, naming `what`, each operand's origin and layout, and the redistribution that would fix
  /// it; InternalError if a tensor does not have a dim for each label.
  void infer(const OpType& op, const at::Tensor& result, std::initializer_list<Operand> operands,
             std::string_view what);

 private:
  struct Entry {
    at::Tensor tensor;  ///< kept alive, so that its address is not reused
    Layout layout;
    std::string origin;
  };
  Layout merged(Layout layout) const;

  bool has_gradients_;
  std::map<const void*, Entry> entries_;
};

}  // namespace caravan

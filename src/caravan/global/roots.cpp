#include "caravan/global/roots.h"

#include <cmath>
#include <limits>
#include <optional>

#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include "caravan/global/local_call.h"

namespace caravan {
namespace {

using torch::jit::Stack;

constexpr double kMaximum = PendingRoot::kMaximum;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The power of the norm of all elements that the op takes, if it is above 0; 0 if it is no such op.
double power_of(const std::string& name, const Stack& stack, size_t base) {
  if (name == "aten::max") return kMaximum;
  const bool is_norm = name == "aten::linalg_vector_norm" && stack[base + 2].isNone() && !stack[base + 3].toBool();
  if (name != "aten::norm.Scalar" && !is_norm) return 0;
  const double order = stack[base + 1].toScalar().toDouble();
  return order > 0 ? order : 0;
}

/// The axes that shard `meta`, as bits; nothing if it is partial on another.
std::optional<uint64_t> sharding_axes(const PieceMeta& meta) {
  uint64_t bits = 0;
  const auto& axes = meta.state->axes();
  for (size_t i = 0; i < axes.size() && i < 64; ++i) {
    const Placement& placement = meta.placed->layout[axes[i]];
    if (placement.is_partial()) return std::nullopt;
    if (placement.is_shard()) bits |= uint64_t{1} << i;
  }
  return bits;
}

at::Tensor wrapped(const at::Tensor& piece, const std::shared_ptr<GlobalState>& state, const PendingRoot& root) {
  at::Tensor result = wrap_piece(piece, piece.sizes(), state->whole(), state);
  meta_of(result)->root = root;
  return result;
}

bool reduce_pieces(const c10::OperatorHandle& op, double power, Stack& stack, size_t base) {
  if (power == 0) return false;
  const at::Tensor self = stack[base].toTensor();
  const PieceMeta* meta = meta_of(self);
  if (meta == nullptr || !self.is_floating_point() || self.numel() == 0) return false;
  if (meta->root.axes != 0 && meta->root.power != power) return false;
  const auto axes = meta->root.axes != 0 ? std::optional(meta->root.axes) : sharding_axes(*meta);
  if (!axes || (*axes == 0 && self.dim() == 0)) return false;
  const PendingRoot root{power, *axes};
  const auto state = meta->state;
  const at::Tensor piece = meta->piece;
  if (piece.numel() == 0) {
    const auto dtype = op.schema().argumentIndexWithName("dtype");
    const c10::IValue type = dtype ? stack[base + *dtype] : c10::IValue();
    const auto options = type.isNone() ? piece.options() : piece.options().dtype(type.toScalarType());
    torch::jit::drop(stack, stack.size() - base);
    stack.emplace_back(wrapped(at::full({}, power == kMaximum ? -kInfinity : 0.0, options), state, root));
    return true;
  }
  stack[base] = piece;
  op.callBoxed(&stack);
  stack.back() = wrapped(stack.back().toTensor(), state, root);
  return true;
}

/// A norm that every rank has, or a root of fewer axes, as one of these: a summand of a sum counts once.
at::Tensor spread(const at::Tensor& tensor, const PendingRoot& root, const GlobalState& state) {
  const PieceMeta* meta = meta_of(tensor);
  const at::Tensor piece = meta == nullptr ? tensor : meta->piece;
  if (root.power == kMaximum || root.power == kInfinity) return piece;
  const uint64_t missing = root.axes & ~(meta == nullptr ? 0 : meta->root.axes);
  for (size_t i = 0; i < state.axes().size() && i < 64; ++i) {
    if ((missing >> i & 1) != 0 && state.mesh()[state.axes()[i]].coord() != 0) return at::zeros_like(piece);
  }
  return piece;
}

bool stack_roots(Stack& stack, size_t base) {
  const std::vector<at::Tensor> tensors = stack[base].toTensorVector();
  PendingRoot root;
  std::shared_ptr<GlobalState> state;
  for (const at::Tensor& each : tensors) {
    const PieceMeta* meta = meta_of(each);
    // What is no norm may be negative: the root of a power of it is something else.
    if (meta == nullptr || meta->root.power == 0 || !meta->placed->is_whole) return false;
    if (root.power != 0 && root.power != meta->root.power) return false;
    root = {meta->root.power, root.axes | meta->root.axes};
    state = meta->state;
  }
  if (root.axes == 0) return false;
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& each : tensors) pieces.push_back(spread(each, root, *state));
  const int64_t dim = stack[base + 1].toInt();
  torch::jit::drop(stack, stack.size() - base);
  stack.emplace_back(wrapped(at::stack(pieces, dim), state, root));
  return true;
}

}  // namespace

bool may_keep_roots(const std::string& name) {
  return name == "aten::norm.Scalar" || name == "aten::linalg_vector_norm" || name == "aten::max" ||
         name == "aten::stack";
}

bool keep_root(const c10::OperatorHandle& op, const std::string& name, Stack& stack) {
  const size_t base = stack.size() - op.schema().arguments().size();
  if (name == "aten::stack") return stack_roots(stack, base);
  return reduce_pieces(op, power_of(name, stack, base), stack, base);
}

void take_root(PieceMeta& meta) {
  const PendingRoot root = meta.root;
  if (root.axes == 0) {
    meta.root = {};
    return;
  }
  const bool is_maximum = root.power == kMaximum || root.power == kInfinity;
  // Powers of floats may overflow.
  at::Tensor value = meta.piece.to(at::kDouble).contiguous();
  if (is_maximum) {
    // A maximum that ranks send need not keep nan.
    const at::Tensor is_nan = value.isnan();
    value = at::stack({value.masked_fill(is_nan, -kInfinity), is_nan.to(at::kDouble)});
  } else {
    value = value.pow(root.power);
  }
  for (size_t i = 0; i < meta.state->axes().size(); ++i) {
    if ((root.axes >> i & 1) == 0) continue;
    const MeshAxis& axis = meta.state->mesh()[meta.state->axes()[i]];
    value = reduced_over(axis, value, is_maximum ? ReduceOp::max : ReduceOp::sum, "norm of pieces");
  }
  value = is_maximum ? value[0].masked_fill(value[1] > 0, std::nan("")) : value.pow(1 / root.power);
  meta.piece = value.to(meta.piece.scalar_type());
  meta.root = {};
}

}  // namespace caravan

#include <map>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/max.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include "caravan/global/local_call.h"
#include "caravan/global/state.h"
#include "caravan/global/taken_apart.h"

namespace caravan {
namespace {

using torch::jit::Stack;

void give(Stack& stack, size_t num_arguments, std::vector<at::Tensor> results) {
  torch::jit::drop(stack, num_arguments);
  stack.emplace_back(std::move(results));
}

void power_sums(Stack& stack) {
  const size_t base = stack.size() - 3;
  const c10::Scalar power = stack[base + 1].toScalar();
  std::vector<at::Tensor> results;
  for (const at::Tensor& each : stack[base].toTensorVector()) {
    const at::Tensor sum = each.abs().pow(power).sum(stack[base + 2].toOptional<at::ScalarType>());
    results.push_back(sum);
  }
  give(stack, 3, std::move(results));
}

void largest(Stack& stack) {
  std::vector<at::Tensor> results;
  for (const at::Tensor& each : stack.back().toTensorVector()) results.push_back(at::max(each));
  give(stack, 1, std::move(results));
}

void products(Stack& stack) {
  const size_t base = stack.size() - 2;
  const auto left = stack[base].toTensorVector();
  const auto right = stack[base + 1].toTensorVector();
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < left.size(); ++i) results.push_back(at::mm(left[i], right.at(i)));
  give(stack, 2, std::move(results));
}

/// The piece of a whole value, or a plain tensor.
at::Tensor whole_piece(const at::Tensor& tensor) {
  PieceMeta* meta = meta_of(tensor);
  return meta == nullptr ? tensor : moved_piece(*meta, meta->state->whole(), "unscale gradients");
}

/// Takes the sums that are pending in `meta`: a summand may be infinite where the sum is not.
void take_sums(PieceMeta& meta) {
  std::vector<Layout::Entry> entries;
  for (const auto& [axis, placement] : meta.placed->layout.entries()) {
    entries.emplace_back(axis, placement.is_partial() ? Placement(Replicate{}) : placement);
  }
  const Placed* to = meta.state->intern(Layout(std::move(entries)));
  if (to == meta.placed) return;
  meta.piece = moved_piece(meta, to, "unscale gradients");
  meta.placed = to;
}

/// Scales the pieces; whether any rank found an infinity is one maximum over all axes, for all tensors.
void unscale(Stack& stack) {
  const size_t base = stack.size() - 3;
  const std::vector<at::Tensor> scaled = stack[base].toTensorVector();
  const at::Tensor found = stack[base + 1].toTensor();
  const at::Tensor factor = whole_piece(stack[base + 2].toTensor());
  std::shared_ptr<GlobalState> state;
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& each : scaled) {
    PieceMeta* meta = meta_of(each);
    if (meta != nullptr) {
      state = meta->state;
      take_sums(*meta);
    }
    pieces.push_back(meta == nullptr ? each : meta->piece);
  }
  for (const at::Tensor& other : {found, stack[base + 2].toTensor()}) {
    if (state == nullptr && meta_of(other) != nullptr) state = meta_of(other)->state;
  }
  at::Tensor flag = whole_piece(found).clone();
  at::_amp_foreach_non_finite_check_and_unscale_(pieces, flag, factor);
  for (const std::string& name : state->axes()) {
    const MeshAxis& axis = state->mesh()[name];
    if (axis.size() > 1) flag = reduced_over(axis, flag, ReduceOp::max, "unscale gradients");
  }
  if (PieceMeta* meta = meta_of(found)) {
    meta->piece = flag;
    meta->placed = state->whole();
  } else {
    found.copy_(flag);
  }
  torch::jit::drop(stack, 3);
}

}  // namespace

const TakenApart* taken_apart(const std::string& name) {
  static const std::map<std::string, TakenApart, std::less<>> all{
      {"aten::_foreach_powsum.Scalar", power_sums},
      {"aten::_foreach_max", largest},
      {"aten::_foreach_mm", products},
      {"aten::_amp_foreach_non_finite_check_and_unscale_", unscale},
  };
  const auto found = all.find(name);
  return found == all.end() ? nullptr : &found->second;
}

}  // namespace caravan

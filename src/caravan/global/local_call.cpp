#include "caravan/global/local_call.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"
#include "caravan/mesh/fit.h"

namespace caravan {

c10::IValue& LocalCall::argument(std::string_view name) {
  if (const auto i = op_.schema().argumentIndexWithName(name)) return stack_[stack_.size() - num_arguments_ + *i];
  throw InternalError({"global", this->name(), fmt::format("has no argument {}", name), "", "name one of its schema"});
}

at::Tensor LocalCall::tensor(std::string_view name) {
  const c10::IValue& value = argument(name);
  return value.isNone() ? at::Tensor() : value.toTensor();
}

void LocalCall::run() { op_.callBoxed(&stack_); }

void LocalCall::give(at::Tensor output) {
  if (op_.schema().arguments().back().is_out()) return give(std::vector<c10::IValue>{std::move(output)});
  torch::jit::drop(stack_, num_arguments_);
  stack_.emplace_back(std::move(output));
}

void LocalCall::give(std::vector<c10::IValue> outputs) {
  size_t output = 0;
  for (size_t i = 0; i < num_arguments_; ++i) {
    if (!op_.schema().arguments()[i].is_out()) continue;
    const at::Tensor out = stack_[stack_.size() - num_arguments_ + i].toTensor();
    const at::Tensor value = outputs.at(output).toTensor();
    if (!out.is_same(value)) {
      if (out.sizes() != value.sizes()) out.resize_(value.sizes());
      out.copy_(value);
    }
    outputs[output++] = out;
  }
  torch::jit::drop(stack_, num_arguments_);
  for (c10::IValue& output : outputs) stack_.push_back(std::move(output));
}

std::vector<const MeshAxis*> LocalCall::axes_of(char label) const {
  std::vector<const MeshAxis*> axes;
  for (const AxisCut& each : placing_.cuts) {
    if (each.cut.is_label() && each.cut.label == label) axes.push_back(&state_.mesh()[each.axis]);
  }
  return axes;
}

LabelRange LocalCall::range(char label) const {
  const auto extent = placing_.extents.find(label);
  LabelRange range{0, extent->second, extent->second};
  for (const AxisCut& each : placing_.cuts) {
    if (!each.cut.is_label() || each.cut.label != label) continue;
    const MeshAxis& axis = state_.mesh()[each.axis];
    const Placement shard = Shard{0, each.cut.sizes, each.cut.owner, each.cut.rows};
    const std::vector<int64_t> rows = rows_of(shard, range.length, axis.size());
    for (int i = 0; i < axis.coord(); ++i) range.begin += rows[i];
    range.length = rows[axis.coord()];
  }
  return range;
}

at::Tensor LocalCall::reduce(char label, const at::Tensor& x, ReduceOp op) {
  at::Tensor result = x;
  for (const MeshAxis* axis : axes_of(label)) result = reduce_over(*axis, result, op);
  return result;
}

at::Tensor reduced_over(const MeshAxis& axis, const at::Tensor& x, ReduceOp op, std::string_view what) {
  if (x.is_complex()) return at::view_as_complex(reduced_over(axis, at::view_as_real(x.resolve_conj()), op, what));
  const at::Tensor own = x.contiguous();
  at::Tensor result = at::empty_like(own);
  all_reduce_async(axis.comm(), own, result, op, Call(what)).wait();
  return result;
}

at::Tensor LocalCall::sum_over(char label, const at::Tensor& x) { return reduce(label, x, ReduceOp::sum); }
at::Tensor LocalCall::max_over(char label, const at::Tensor& x) { return reduce(label, x, ReduceOp::max); }

at::Tensor LocalCall::sum_over(std::string_view labels, const at::Tensor& x) {
  at::Tensor result = x;
  for (const char label : labels) result = reduce(label, result, ReduceOp::sum);
  return result;
}

at::Tensor LocalCall::max_over(std::string_view labels, const at::Tensor& x) {
  at::Tensor result = x;
  for (const char label : labels) result = reduce(label, result, ReduceOp::max);
  return result;
}

}  // namespace caravan

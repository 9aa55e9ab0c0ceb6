#include <algorithm>
#include <limits>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/reduced.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/typing.h"

namespace caravan {
namespace {

/// How the norms of parts become that of the whole: as a sum of powers, the largest or the smallest.
struct NormOrder {
  double order;

  bool is_largest() const { return order == std::numeric_limits<double>::infinity(); }
  bool is_smallest() const { return order == -std::numeric_limits<double>::infinity(); }
  /// A number of which sums, or maxima, are taken.
  at::Tensor summand(const at::Tensor& norm) const {
    if (order == 0 || order == 1 || is_largest()) return norm;
    return is_smallest() ? norm.neg() : norm.pow(order);
  }
  at::Tensor norm(const at::Tensor& sum) const {
    if (order == 0 || order == 1 || is_largest()) return sum;
    return is_smallest() ? sum.neg() : order == 2 ? sum.sqrt() : sum.pow(1 / order);
  }
  ReduceOp op() const { return is_largest() || is_smallest() ? ReduceOp::max : ReduceOp::sum; }
  /// The norm of no elements, as a part of a whole.
  double of_none() const { return order < 0 ? std::numeric_limits<double>::infinity() : 0; }
};

/// Sums of powers of halves are taken in fp32.
std::optional<at::ScalarType> summed_type(const at::Tensor& x, const c10::IValue* dtype) {
  const at::ScalarType type = dtype != nullptr && !dtype->isNone() ? dtype->toScalarType() : x.scalar_type();
  if (type == at::kHalf || type == at::kBFloat16) return at::kFloat;
  return dtype != nullptr && !dtype->isNone() ? std::optional(type) : std::nullopt;
}

at::ScalarType norm_type(const at::Tensor& x, const c10::IValue* dtype) {
  const at::ScalarType type = dtype != nullptr && !dtype->isNone() ? dtype->toScalarType() : x.scalar_type();
  return c10::toRealValueType(type);
}

/// The norm of a piece, before powers of the parts are summed.
at::Tensor piece_norm(const at::Tensor& x, const NormOrder& order, const std::vector<int64_t>& dims, bool keeps,
                      const c10::IValue* dtype) {
  const auto type = summed_type(x, dtype);
  if (x.numel() > 0) return at::linalg_vector_norm(x, order.order, dims, keeps, type);
  std::vector<int64_t> sizes;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    const bool is_reduced = std::ranges::find(dims, dim) != dims.end();
    if (!is_reduced) sizes.push_back(x.size(dim));
    if (is_reduced && keeps) sizes.push_back(1);
  }
  return at::full(sizes, order.of_none(), x.options().dtype(c10::toRealValueType(type.value_or(x.scalar_type()))));
}

NormOrder order_of(const c10::IValue& value) { return {value.isNone() ? 2.0 : value.toScalar().toDouble()}; }

/// The norm over cut dims: an all-reduce of a number for each norm.
TypedResult vector_norm(const OpCall& call) {
  const std::vector<int64_t> dims = reduced_dims(call);
  TypedCall operation = reduction_by_kernel(call, dims);
  const std::string reduced = operation.kernel_labels;
  if (reduced.empty()) return operation;
  const std::string order_name = call.index("ord") >= 0 ? "ord" : "p";
  const bool has_dtype = call.index("dtype") >= 0;
  const bool keeps = call.index("keepdim") >= 0 && call.flag("keepdim");
  operation.kernel = [=](LocalCall& local) {
    const at::Tensor x = local.tensor("self");
    const NormOrder order = order_of(local.argument(order_name));
    const c10::IValue* dtype = has_dtype ? &local.argument("dtype") : nullptr;
    const at::Tensor part = order.summand(piece_norm(x, order, dims, keeps, dtype));
    const at::Tensor sum = order.op() == ReduceOp::max ? local.max_over(reduced, part) : local.sum_over(reduced, part);
    local.give({order.norm(sum).to(norm_type(x, dtype))});
  };
  return operation;
}

/// The axes of the mesh that cut each tensor of a list.
using AxesOfTensors = std::vector<std::vector<std::string>>;

/// The norms of a list of tensors as they lie, in one all-reduce for each axis.
void list_norms(LocalCall& call, const AxesOfTensors& axes) {
  const std::vector<at::Tensor> tensors = call.argument("self").toTensorVector();
  const NormOrder order = order_of(call.argument("ord"));
  const c10::IValue dtype = call.argument("dtype");
  std::vector<at::Tensor> parts;
  for (const at::Tensor& x : tensors) {
    std::vector<int64_t> dims;
    for (int64_t dim = 0; dim < x.dim(); ++dim) dims.push_back(dim);
    parts.push_back(order.summand(piece_norm(x, order, dims, false, &dtype)));
  }
  for (const std::string& axis : call.state().axes()) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      std::vector<size_t> chosen;
      std::vector<at::Tensor> each;
      for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i].scalar_type() != type || std::ranges::find(axes[i], axis) == axes[i].end()) continue;
        chosen.push_back(i);
        each.push_back(parts[i]);
      }
      if (each.empty()) continue;
      const at::Tensor sums = call.reduce_over(call.state().mesh()[axis], at::stack(each), order.op());
      for (size_t i = 0; i < chosen.size(); ++i) parts[chosen[i]] = sums[static_cast<int64_t>(i)];
    }
  }
  c10::List<at::Tensor> norms;
  for (size_t i = 0; i < parts.size(); ++i) norms.push_back(order.norm(parts[i]).to(norm_type(tensors[i], &dtype)));
  call.give({std::move(norms)});
}

/// Each tensor of the list lies as it is, but for pending sums.
TypedResult foreach_norm(const OpCall& call) {
  TypedCall operation;
  std::vector<Layout> operands;
  std::vector<Layout> outputs;
  AxesOfTensors axes;
  for (int i = 0; i < call.num_operands(); ++i) {
    Labels labels;
    operation.inputs.push_back(labels.next(call.num_dims(i)));
    operation.outputs.emplace_back();
    std::vector<Layout::Entry> own;
    std::vector<Layout::Entry> whole;
    axes.emplace_back();
    for (const auto& [axis, placement] : call.operand(i).layout->entries()) {
      whole.emplace_back(axis, Replicate{});
      own.emplace_back(axis, placement.is_shard() ? placement : Placement(Replicate{}));
      if (placement.is_shard()) axes.back().push_back(axis);
    }
    operands.emplace_back(std::move(own));
    outputs.emplace_back(std::move(whole));
  }
  operation.layouts = {std::move(operands), std::move(outputs)};
  operation.kernel = [axes](LocalCall& local) { list_norms(local, axes); };
  return operation;
}

}  // namespace

void add_norm_rules(RuleTable& rules) {
  rules.add({"aten::linalg_vector_norm", "aten::norm.Scalar", "aten::norm.ScalarOpt_dim",
             "aten::norm.ScalarOpt_dim_dtype", "aten::norm.ScalarOpt_dtype", "aten::norm.out", "aten::norm.dtype_out",
             "aten::norm.Scalar_out", "aten::norm.ScalarOpt_dtype_out"},
            vector_norm);
  rules.add("aten::_foreach_norm.Scalar", foreach_norm);
}

}  // namespace caravan

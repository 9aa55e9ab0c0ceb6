#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/reduced.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/shapes.h"

namespace caravan {

std::vector<int64_t> reduced_dims(const OpCall& call) {
  std::vector<int64_t> dims;
  if (call.index("dim") >= 0) dims = call.integers("dim");
  for (int64_t& dim : dims) dim = dim < 0 ? dim + call.num_dims(0) : dim;
  if (dims.empty()) {
    for (int64_t dim = 0; dim < call.num_dims(0); ++dim) dims.push_back(dim);
  }
  return dims;
}

TypedCall reduction(const OpCall& call, const std::vector<int64_t>& dims) {
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.operand(0))}};
  const bool keeps = call.index("keepdim") >= 0 && call.flag("keepdim");
  Dims output;
  for (int64_t dim = 0; dim < call.num_dims(0); ++dim) {
    const bool is_reduced = std::ranges::find(dims, dim) != dims.end();
    if (!is_reduced) output.push_back(operation.inputs[0][dim]);
    if (is_reduced && keeps) output.emplace_back();
  }
  operation.outputs.assign(std::max<size_t>(1, call.schema().returns().size()), output);
  return operation;
}

std::string reduced_labels(const TypedCall& operation) {
  std::string reduced;
  for (const std::string& dim : operation.inputs[0]) {
    if (!dim.empty() && !has_label(operation.outputs[0], dim[0])) reduced += dim;
  }
  return reduced;
}

TypedCall reduction_by_kernel(const OpCall& call, const std::vector<int64_t>& dims) {
  TypedCall operation = reduction(call, dims);
  operation.whole = operation.kernel_labels = reduced_labels(operation);
  operation.whole_outputs = {0};
  return operation;
}

TypedCall whole_reduction(const OpCall& call) {
  TypedCall operation = reduction(call, reduced_dims(call));
  operation.whole = reduced_labels(operation);
  return operation;
}

namespace {

TypedResult sum(const OpCall& call) {
  TypedCall operation = reduction(call, reduced_dims(call));
  operation.terms = {{0}};
  return operation;
}

/// A mean over a cut dim is the sum of what each rank has, divided by the elements of the whole.
TypedResult mean(const OpCall& call) {
  const std::vector<int64_t> dims = reduced_dims(call);
  TypedCall operation = reduction(call, dims);
  operation.terms = {{0}};
  double elements = 1;
  for (const int64_t dim : dims) elements *= static_cast<double>(call.sizes(0)[dim]);
  operation.kernel_labels = reduced_labels(operation);
  if (operation.kernel_labels.empty()) return operation;
  const bool keeps = call.index("keepdim") >= 0 && call.flag("keepdim");
  operation.kernel = [dims, keeps, elements](LocalCall& local) {
    const c10::IValue& dtype = local.argument("dtype");
    const at::Tensor self = local.tensor("self");
    const at::ScalarType type = dtype.isNone() ? self.scalar_type() : dtype.toScalarType();
    // A sum of halves may overflow where their mean does not.
    const bool is_narrow = type == at::kHalf || type == at::kBFloat16;
    local.give({at::sum(self, dims, keeps, is_narrow ? at::kFloat : type).div(elements).to(type)});
  };
  return operation;
}

TypedResult count_nonzero(const OpCall& call) { return reduction(call, reduced_dims(call)); }

/// NaN in a sum is not NaN in each summand: not linear.
TypedResult nansum(const OpCall& call) { return reduction(call, reduced_dims(call)); }

/// Counts, which are summed, unless the range is that of all elements.
TypedResult histogram(const OpCall& call) {
  TypedCall operation = reduction(call, identity_order(call.num_dims(0)));
  operation.outputs = {{""}};
  if (call.number("min") == call.number("max")) operation.whole = reduced_labels(operation);
  return operation;
}

/// The products of all ranks, multiplied in their order.
TypedResult prod(const OpCall& call) {
  TypedCall operation = whole_reduction(call);
  operation.kernel_labels = operation.whole;
  if (operation.whole.empty()) return operation;
  operation.whole_outputs = {0};
  operation.kernel = [labels = operation.whole](LocalCall& local) {
    local.run();
    const at::Tensor own = local.result(0).toTensor();
    at::Tensor product = own;
    for (const char label : labels) {
      for (const MeshAxis* axis : local.axes_of(label)) {
        std::vector<at::Tensor> each(axis->size(), at::zeros_like(product));
        each[axis->coord()] = product;
        product = local.reduce_over(*axis, at::stack(each), ReduceOp::sum).prod(0).to(own.scalar_type());
      }
    }
    if (!product.is_same(own)) own.copy_(product);
  };
  return operation;
}

/// Means of a cut dim, then squares of what differs from them, each summed over the ranks.
struct Moments {
  std::string labels;
  std::vector<int64_t> dims;
  bool keeps = false;
  double elements = 1;
  bool is_root = false;

  /// Variance, or its root, and mean.
  std::pair<at::Tensor, at::Tensor> of(LocalCall& local, const at::Tensor& given) const {
    const bool is_wide = given.scalar_type() == at::kDouble || given.scalar_type() == at::kFloat;
    const at::Tensor x = is_wide ? given : given.to(at::kFloat);
    at::Tensor mean = local.sum_over(labels, x.sum(dims, true)) / elements;
    at::Tensor spread = local.sum_over(labels, (x - mean).square().sum(dims, true));
    const c10::IValue& given_correction = local.argument("correction");
    const double correction = given_correction.isNone() ? 1 : given_correction.toScalar().toDouble();
    spread = spread / std::max(0.0, elements - correction);
    if (is_root) spread = spread.sqrt();
    if (!keeps) {
      mean = mean.squeeze(dims);
      spread = spread.squeeze(dims);
    }
    return {spread.to(given.scalar_type()), mean.to(given.scalar_type())};
  }
};

TypedResult variance(const OpCall& call, bool is_root, bool gives_mean) {
  TypedCall operation = whole_reduction(call);
  if (operation.whole.empty() || call.value("self").toTensor().is_complex()) return operation;
  Moments moments{operation.whole, reduced_dims(call), call.flag("keepdim"), 1, is_root};
  for (const int64_t dim : moments.dims) moments.elements *= static_cast<double>(call.sizes(0)[dim]);
  operation.kernel_labels = operation.whole;
  operation.whole_outputs = {0, 1};
  operation.kernel = [moments, gives_mean](LocalCall& local) {
    const auto [spread, mean] = moments.of(local, local.tensor("self"));
    if (gives_mean) return local.give({spread, mean});
    local.give({spread});
  };
  return operation;
}

/// An answer that follows from the sizes of the global tensors: pieces stay where they are.
TypedCall answered(const OpCall& call, bool answer) {
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0)), labels.of(call.sizes(1))}};
  operation.layouts.emplace();
  for (const GlobalOperand& operand : call.operands()) operation.layouts->first.push_back(*operand.layout);
  operation.kernel = [answer](LocalCall& local) { local.give({answer}); };
  return operation;
}

/// Whether two tensors have the same sizes and elements: no tensor, so each rank needs the answer for all pieces.
TypedResult equal(const OpCall& call) {
  if (call.sizes(0) != call.sizes(1)) return answered(call, false);
  Labels labels;
  const Dims dims = labels.of(call.sizes(0));
  TypedCall operation{.inputs = {dims, dims}};
  for (const std::string& dim : dims) operation.kernel_labels += dim;
  if (operation.kernel_labels.empty()) return operation;
  operation.kernel = [labels = operation.kernel_labels](LocalCall& local) {
    const at::Tensor self = local.tensor("self");
    const int64_t differs = self.equal(local.tensor("other")) ? 0 : 1;
    local.give({local.max_over(labels, at::full({1}, differs, self.options().dtype(at::kLong))).item<int64_t>() == 0});
  };
  return operation;
}

/// Of the global tensors, whose pieces may differ.
TypedResult is_same_size(const OpCall& call) { return answered(call, call.sizes(0) == call.sizes(1)); }

}  // namespace

void add_reduction_rules(RuleTable& rules) {
  rules.add({"aten::sum", "aten::sum.dim_IntList"}, sum);
  rules.add("aten::nansum", nansum);
  rules.add({"aten::mean", "aten::mean.dim"}, mean);
  rules.add("aten::count_nonzero", count_nonzero);
  rules.add({"aten::prod", "aten::prod.dim_int"}, prod);
  rules.add({"aten::var.correction", "aten::var.correction_out"},
            [](const OpCall& call) { return variance(call, false, false); });
  rules.add({"aten::std.correction", "aten::std.correction_out"},
            [](const OpCall& call) { return variance(call, true, false); });
  rules.add({"aten::var_mean.correction", "aten::var_mean.correction_out"},
            [](const OpCall& call) { return variance(call, false, true); });
  rules.add({"aten::std_mean.correction", "aten::std_mean.correction_out"},
            [](const OpCall& call) { return variance(call, true, true); });
  rules.add("aten::histc", histogram);
  rules.add("aten::linalg__powsum",
            [](const OpCall& call) -> TypedResult { return reduction(call, reduced_dims(call)); });
  rules.add("aten::equal", equal);
  rules.add("aten::is_same_size", is_same_size);
  add_extreme_rules(rules);
}

}  // namespace caravan

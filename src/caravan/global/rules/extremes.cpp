#include <algorithm>
#include <limits>

#include <ATen/core/Tensor.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max.h>
#include <ATen/ops/stack.h>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/looked_up.h"
#include "caravan/global/rules/reduced.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/shapes.h"

namespace caravan {
namespace {

/// Elements in the opposite order: the minimum is the maximum of these. Its own inverse.
at::Tensor reversed(const at::Tensor& x) { return x.is_floating_point() ? x.neg() : x.bitwise_not(); }

c10::Scalar lowest(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
    case at::kByte: return 0;
    case at::kChar: return std::numeric_limits<int8_t>::lowest();
    case at::kShort: return std::numeric_limits<int16_t>::lowest();
    case at::kInt: return std::numeric_limits<int32_t>::lowest();
    case at::kLong: return std::numeric_limits<int64_t>::lowest();
    default: return -std::numeric_limits<double>::infinity();
  }
}

/// The maximum over the ranks that cut the labels. A NaN anywhere is one in the result, whatever the collective does
/// with it.
at::Tensor max_of_ranks(LocalCall& local, std::string_view labels, const at::Tensor& x) {
  if (!x.is_floating_point()) return local.max_over(labels, x.to(at::kLong)).to(x.scalar_type());
  const auto dtype = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor wide = x.to(dtype);
  const at::Tensor is_nan = wide.isnan();
  const at::Tensor both =
      local.max_over(labels, at::stack({wide.masked_fill(is_nan, lowest(dtype)), is_nan.to(dtype)}));
  return both[0].masked_fill(both[1].gt(0), std::numeric_limits<double>::quiet_NaN()).to(x.scalar_type());
}

/// The maximum over `dims` of a piece that may have no elements there, kept as dims of one element.
at::Tensor max_of_piece(const at::Tensor& x, const Sizes& dims) {
  Sizes sizes = x.sizes().vec();
  bool is_empty = false;
  for (const int64_t dim : dims) {
    is_empty = is_empty || sizes[dim] == 0;
    sizes[dim] = 1;
  }
  return is_empty ? at::full(sizes, lowest(x.scalar_type()), x.options()) : at::amax(x, dims, true);
}

at::Tensor max_of_all(LocalCall& local, const std::string& labels, const at::Tensor& x, const Sizes& dims, bool keeps) {
  const at::Tensor max = max_of_ranks(local, labels, max_of_piece(x, dims));
  return keeps ? max : max.squeeze(dims);
}

bool keeps_dims(const OpCall& call) { return call.index("keepdim") >= 0 && call.flag("keepdim"); }

TypedResult extreme(const OpCall& call, bool is_max) {
  if (call.index("other") >= 0) return pointwise(call);
  TypedCall operation = whole_reduction(call);
  operation.kernel_labels = operation.whole;
  if (operation.whole.empty()) return operation;
  operation.whole_outputs = {0};
  operation.kernel = [is_max, labels = operation.whole, dims = reduced_dims(call),
                      keeps = keeps_dims(call)](LocalCall& local) {
    const at::Tensor x = is_max ? local.tensor("self") : reversed(local.tensor("self"));
    const at::Tensor max = max_of_all(local, labels, x, dims, keeps);
    local.give({is_max ? max : reversed(max)});
  };
  return operation;
}

TypedResult aminmax(const OpCall& call) {
  TypedCall operation = whole_reduction(call);
  operation.kernel_labels = operation.whole;
  if (operation.whole.empty()) return operation;
  operation.whole_outputs = {0, 1};
  operation.kernel = [labels = operation.whole, dims = reduced_dims(call), keeps = keeps_dims(call)](LocalCall& local) {
    const at::Tensor x = local.tensor("self");
    const at::Tensor min = reversed(max_of_all(local, labels, reversed(x), dims, keeps));
    local.give({min, max_of_all(local, labels, x, dims, keeps)});
  };
  return operation;
}

struct Extreme {
  at::Tensor value, index;
};

/// The maximum along one dim that is cut, and the first index that has it.
Extreme first_max(LocalCall& local, char label, const at::Tensor& x, int64_t dim, bool keeps) {
  const LabelRange range = local.range(label);
  Extreme own;
  if (range.length == 0) {
    own.value = max_of_piece(x, {dim});
    own.index = at::full(own.value.sizes(), range.whole, own.value.options().dtype(at::kLong));
  } else {
    std::tie(own.value, own.index) = at::max(x, dim, true);
    own.index.add_(range.begin);
  }
  const std::string_view labels(&label, 1);
  Extreme all{max_of_ranks(local, labels, own.value), {}};
  at::Tensor has_it = own.value.eq(all.value);
  if (x.is_floating_point()) has_it.logical_or_(own.value.isnan());
  const at::Tensor last = own.index.neg().masked_fill_(has_it.logical_not_(), -range.whole);
  all.index = local.max_over(label, last).neg();
  if (keeps) return all;
  return {all.value.squeeze(dim), all.index.squeeze(dim)};
}

/// max.dim, min.dim, argmax, argmin. All elements as one dim need all of them.
TypedResult extreme_with_index(const OpCall& call, bool is_max, bool has_value) {
  TypedCall operation = whole_reduction(call);
  const std::vector<int64_t> dims = reduced_dims(call);
  if (dims.size() != 1 || !call.has("dim") || call.num_dims(0) == 0) return operation;
  const std::string label = operation.inputs[0][dims[0]];
  add_row_kernel(operation, call, label,
                 [is_max, has_value, label, dim = dims[0], keeps = keeps_dims(call)](LocalCall& local) {
                   const at::Tensor x = is_max ? local.tensor("self") : reversed(local.tensor("self"));
                   const Extreme all = first_max(local, label[0], x, dim, keeps);
                   if (!has_value) return local.give({all.index});
                   local.give({is_max ? all.value : reversed(all.value), all.index});
                 });
  if (operation.kernel) operation.whole_outputs = {0, 1};
  return operation;
}

/// Whether any element is not 0, or all are.
TypedResult any_or_all(const OpCall& call, bool is_all) {
  if (call.schema().overload_name() == "dims" && call.has("dim") && call.integers("dim").empty()) {
    return pointwise(call);  // reduces nothing
  }
  TypedCall operation = whole_reduction(call);
  operation.kernel_labels = operation.whole;
  if (operation.whole.empty()) return operation;
  operation.whole_outputs = {0};
  operation.kernel = [is_all, labels = operation.whole](LocalCall& local) {
    local.run();
    const at::Tensor own = local.result(0).toTensor();
    const at::Tensor counts = (is_all ? own.eq(0) : own.ne(0)).to(at::kByte);
    const at::Tensor found = local.max_over(labels, counts);
    own.copy_(is_all ? found.eq(0) : found.ne(0));
  };
  return operation;
}

}  // namespace

void add_extreme_rules(RuleTable& rules) {
  rules.add({"aten::amax", "aten::max"}, [](const OpCall& call) { return extreme(call, true); });
  rules.add({"aten::amin", "aten::min"}, [](const OpCall& call) { return extreme(call, false); });
  rules.add("aten::aminmax", aminmax);
  rules.add({"aten::max.dim", "aten::max.dim_max"},
            [](const OpCall& call) { return extreme_with_index(call, true, true); });
  rules.add({"aten::min.dim", "aten::min.dim_min"},
            [](const OpCall& call) { return extreme_with_index(call, false, true); });
  rules.add("aten::argmax", [](const OpCall& call) { return extreme_with_index(call, true, false); });
  rules.add("aten::argmin", [](const OpCall& call) { return extreme_with_index(call, false, false); });
  rules.add({"aten::any", "aten::_is_any_true"}, [](const OpCall& call) { return any_or_all(call, false); });
  rules.add({"aten::all", "aten::_is_all_true"}, [](const OpCall& call) { return any_or_all(call, true); });
}

}  // namespace caravan

#include "caravan/global/rules/reduced.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/shapes.h"

namespace caravan {
namespace {

/// Ops along dim `dim`, which they need whole; all operands have the sizes of the first, and so have all outputs.
TypedCall along_one_dim(const OpCall& call, int64_t dim) {
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.operand(0))}};
  if (dim < call.num_dims(0) && dim >= 0) operation.whole = operation.inputs[0][dim];
  operation.outputs.assign(call.schema().returns().size(), operation.inputs[0]);
  return operation;
}

TypedResult sorted(const OpCall& call) { return along_one_dim(call, call.dim("dim")); }

TypedResult cumulated(const OpCall& call, bool is_linear) {
  TypedCall operation = along_one_dim(call, call.dim("dim"));
  if (is_linear) operation.terms = {{0}};
  return operation;
}

TypedResult topk(const OpCall& call) {
  const int64_t dim = call.dim("dim");
  TypedCall operation = along_one_dim(call, dim);
  for (Dims& output : operation.outputs) {
    if (dim >= 0 && dim < call.num_dims(0)) output[dim] = "";
  }
  return operation;
}

TypedResult flip(const OpCall& call) { return within_dims(call, call.integers("dims")); }

/// Without dims, the elements roll as if they were one dim.
TypedResult roll(const OpCall& call) {
  const Sizes dims = call.integers("dims");
  return within_dims(call, dims.empty() ? identity_order(call.num_dims(0)) : dims);
}

/// An odd number of quarter turns swaps two dims.
TypedResult rot90(const OpCall& call) {
  const Sizes dims = call.integers("dims");
  TypedCall operation = within_dims(call, dims);
  for (const int64_t dim : dims) operation.outputs[0][wrapped(dim, call.num_dims(0))] = "";
  return operation;
}

}  // namespace

void add_sequence_rules(RuleTable& rules) {
  rules.add({"aten::sort", "aten::argsort"}, sorted);
  rules.add({"aten::cumsum", "aten::cumsum_"}, [](const OpCall& call) { return cumulated(call, true); });
  rules.add(
      {"aten::cumprod", "aten::cumprod_", "aten::cummax", "aten::cummin", "aten::logcumsumexp", "aten::_logcumsumexp"},
      [](const OpCall& call) { return cumulated(call, false); });
  rules.add("aten::topk", topk);
  rules.add({"aten::kthvalue", "aten::mode", "aten::median", "aten::nanmedian"},
            [](const OpCall& call) -> TypedResult { return whole_reduction(call); });
  rules.add("aten::flip", flip);
  rules.add("aten::roll", roll);
  rules.add("aten::rot90", rot90);
}

}  // namespace caravan

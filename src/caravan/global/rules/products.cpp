#include <ATen/core/Tensor.h>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/rules.h"

namespace caravan {
namespace {

/// A bias that may be broadcast: its labels at the end of those of the result.
Dims bias_dims(const OpCall& call, size_t operand, const Dims& result) {
  const std::vector<int64_t> sizes = call.sizes(operand);
  Dims dims(result.end() - static_cast<int64_t>(sizes.size()), result.end());
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1) dims[i] = "";
  }
  return dims;
}

/// bias + a b: the product's terms with a bias that is added once.
std::optional<TypedCall> added(const OpCall& call, const std::vector<Dims>& factors, const Dims& result) {
  TypedCall operation;
  operation.inputs = {bias_dims(call, 0, result)};
  operation.inputs.insert(operation.inputs.end(), factors.begin(), factors.end());
  operation.outputs = {result};
  operation.terms = {{0}, {1, 2}};
  return operation;
}

/// ATen does not broadcast the bias where a piece of the matrix has no columns.
std::optional<TypedCall> added_to_vector(const OpCall& call) {
  auto operation = added(call, {{"m", "k"}, {"k"}}, {"m"});
  if (call.sizes(0) == std::vector<int64_t>{call.sizes(1)[0]}) return operation;
  operation->kernel = [](LocalCall& local) {
    local.argument("self") = local.tensor("self").expand({local.tensor("mat").size(0)});
    local.run();
  };
  return operation;
}

}  // namespace

void add_product_rules(RuleTable& rules) {
  rules.add("aten::mm", OpType{"mk,kn->mn", "", {{0, 1}}});
  rules.add("aten::bmm", OpType{"bmk,bkn->bmn", "", {{0, 1}}});
  rules.add("aten::mv", OpType{"mk,k->m", "", {{0, 1}}});
  rules.add({"aten::dot", "aten::vdot"}, [](const OpCall&) -> std::optional<TypedCall> {
    return TypedCall{.inputs = {{"k"}, {"k"}}, .outputs = {{}}, .terms = {{0, 1}}};
  });
  rules.add({"aten::addmm", "aten::addmm_", "aten::_addmm_activation"}, [](const OpCall& call) {
    auto operation = added(call, {{"m", "k"}, {"k", "n"}}, {"m", "n"});
    if (call.schema().name() == "aten::_addmm_activation") {
      operation->whole = "k";
      operation->terms.clear();
    }
    return operation;
  });
  rules.add({"aten::addmv", "aten::addmv_"}, added_to_vector);
  rules.add({"aten::baddbmm", "aten::baddbmm_"}, [](const OpCall& call) {
    return added(call, {{"b", "m", "k"}, {"b", "k", "n"}}, {"b", "m", "n"});
  });
  rules.add({"aten::addbmm", "aten::addbmm_"}, [](const OpCall& call) {
    return added(call, {{"b", "m", "k"}, {"b", "k", "n"}}, {"m", "n"});
  });
  rules.add({"aten::addr", "aten::addr_"}, [](const OpCall& call) { return added(call, {{"m"}, {"n"}}, {"m", "n"}); });
}

}  // namespace caravan

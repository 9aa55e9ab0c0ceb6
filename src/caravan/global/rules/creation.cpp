#include <vector>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/rules.h"

namespace caravan {
namespace {

/// A new tensor of the operand's sizes: cut as the operand is. Zeros are summands of a sum if the operand is one, other
/// values are whole then.
TypedResult like(const OpCall& call, bool is_zero) {
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.operand(0))}};
  operation.outputs = operation.inputs;
  if (is_zero) operation.terms = {{0}};
  if (!is_zero) operation.unread = {0};
  return operation;
}

/// A new tensor of sizes of its own: cut as the operand where the sizes are the same, else whole. The operand, of which
/// only dtype and device count, stays where it is.
TypedResult of_sizes(const OpCall& call, bool is_zero) {
  const std::vector<int64_t> sizes = call.integers("size");
  TypedCall operation = *like(call, is_zero);
  if (sizes == call.sizes(0)) {
    operation.local_arguments = {{call.index("size"), operation.outputs[0]}};
    return operation;
  }
  operation.outputs = {Dims(sizes.size(), "")};
  operation.whole_outputs = {0};
  return operation;
}

/// The strides are those of the whole: a piece is dense in the same order, so that views of it share its memory.
void with_dense_strides(LocalCall& local) {
  const std::vector<int64_t> sizes = local.argument("size").toIntVector();
  const Strides dense = strides_like(local.argument("stride").toIntVector(), sizes, sizes);
  local.argument("stride") = std::vector<int64_t>(dense.begin(), dense.end());
  local.run();
}

}  // namespace

void add_creation_rules(RuleTable& rules) {
  rules.add({"aten::zeros_like", "aten::empty_like"}, [](const OpCall& call) { return like(call, true); });
  rules.add({"aten::ones_like", "aten::full_like"}, [](const OpCall& call) { return like(call, false); });
  rules.add({"aten::new_zeros", "aten::new_empty"}, [](const OpCall& call) { return of_sizes(call, true); });
  rules.add("aten::new_empty_strided", [](const OpCall& call) {
    auto operation = of_sizes(call, true);
    if (operation) operation->kernel = with_dense_strides;
    return operation;
  });
  rules.add({"aten::new_ones", "aten::new_full"}, [](const OpCall& call) { return of_sizes(call, false); });
}

}  // namespace caravan

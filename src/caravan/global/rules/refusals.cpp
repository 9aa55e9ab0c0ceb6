#include <algorithm>
#include <string>

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include "caravan/base/error.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/shapes.h"

namespace caravan {
namespace {

/// An op on the memory of a tensor, of which each rank has a part.
Rule refusal(const std::string& fact, const std::string& action) {
  return [fact, action](const OpCall& call) -> TypedResult {
    throw UsageError({"global", call.name(), fact, "", action});
  };
}

/// Resizing to the same sizes changes nothing.
TypedResult resize(const OpCall& call) {
  const bool is_same = call.index("size") >= 0 ? call.integers("size") == call.sizes(0)
                                               : call.num_operands() > 1 && call.sizes(0) == call.sizes(1);
  if (!is_same) {
    throw UsageError({"global", call.name(), "would change the number of rows that each rank holds", "",
                      "make a new tensor, with new_empty() or pad(), and copy into it"});
  }
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0))}};
  operation.outputs = {operation.inputs[0]};
  if (call.num_operands() > 1) operation.inputs.push_back(operation.inputs[0]);
  if (call.index("size") >= 0) operation.local_arguments = {{call.index("size"), operation.outputs[0]}};
  operation.terms = {{0}};
  return operation;
}

/// Whether the op draws nothing with these arguments: no dropout, or no training.
bool draws_nothing(const c10::FunctionSchema& schema, const c10::IValue* arguments) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const std::string& name = schema.arguments()[i].name();
    const bool is_rate = name == "dropout_p" || name == "dropout" || name == "p";
    if (is_rate && arguments[i].isDouble() && arguments[i].toDouble() == 0) return true;
    if ((name == "train" || name == "training") && arguments[i].isBool() && !arguments[i].toBool()) return true;
  }
  return false;
}

}  // namespace

void refuse_draws(const c10::OperatorHandle& op, const c10::IValue* arguments) {
  const c10::FunctionSchema& schema = op.schema();
  const bool has_generator = std::ranges::any_of(schema.arguments(), [](const c10::Argument& argument) {
    return argument.type()->isSubtypeOf(*c10::OptionalType::create(c10::GeneratorType::get()));
  });
  if (!has_generator && !op.hasTag(at::Tag::nondeterministic_seeded)) return;
  if (draws_nothing(schema, arguments)) return;
  throw UsageError({"global", c10::toString(op.operator_name()),
                    "draws random numbers and has no rule: each process would draw others from its own generator", "",
                    "draw for each piece by local_map(), or a plain tensor from one seed on all ranks, and "
                    "distribute() it"});
}

void add_refusals(RuleTable& rules) {
  // Of lists of tensors, but not pointwise: on whole tensors.
  rules.add({"aten::_foreach_max", "aten::_foreach_mm"}, [](const OpCall&) -> TypedResult { return std::nullopt; });
  rules.add({"aten::as_strided", "aten::as_strided_", "aten::as_strided_copy", "aten::as_strided_scatter"},
            refusal("strides describe one memory, and each rank has a piece of the tensor",
                    "use view, transpose, slice, diagonal or unfold"));
  rules.add("aten::set_", refusal("a global tensor has no storage of its own",
                                  "copy_ into it, or set_data() of a parameter to another global tensor"));
  rules.add({"aten::resize_", "aten::resize_as_", "aten::_resize_output_"}, resize);
}

}  // namespace caravan

#pragma once

#include <memory>
#include <vector>

#include "caravan/global/op_info.h"

namespace caravan {

/// How to run this call: by the op's rule, by that of pointwise ops if it is tagged as one, element by element for ops
/// on lists, else on whole tensors. Throws UsageError in strict mode for a call that runs whole although an operand is
/// sharded. Deterministic: all ranks choose the same.
std::shared_ptr<const Solution> plan_call(const c10::OperatorHandle& op, const OpInfo& info,
                                          const c10::IValue* arguments, std::vector<GlobalOperand> operands,
                                          GlobalState& state);

}  // namespace caravan

#pragma once

#include <functional>
#include <string>

#include <ATen/core/stack.h>

namespace caravan {

/// Runs an op on lists of global tensors, which is not pointwise, as one op for each element: from the stack to it.
using TakenApart = std::function<void(torch::jit::Stack&)>;

/// For an op of this name; null: it runs as it is.
const TakenApart* taken_apart(const std::string& name);

}  // namespace caravan

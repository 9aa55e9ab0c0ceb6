#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "caravan/global/state.h"

namespace caravan {

/// The norm of a tensor in pieces is first one norm for each piece, and PieceMeta::root says so: the all-reduce comes
/// when someone needs the value. What stacks such norms and takes the norm of them, as clip_grad_norm_ does, has one
/// all-reduce for each axis, however many parameters there are. The same for maxima.

/// Whether the op is one of those that make or keep such values.
bool may_keep_roots(const std::string& name);

/// Runs the op if it makes or keeps one in this call; else leaves the stack as it is.
bool keep_root(const c10::OperatorHandle& op, const std::string& name, torch::jit::Stack& stack);

/// Takes the value. Collective, over the axes of the root.
void take_root(PieceMeta& meta);

}  // namespace caravan

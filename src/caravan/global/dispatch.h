#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace caravan {

/// The kernel of every op on global tensors: redistributes operands as the op's rule needs, runs the op on pieces, and
/// wraps what it returns. Boxed: called by the dispatcher below autograd.
void run_on_pieces(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// Registers run_on_pieces on kGlobalKey: as fallback, and for each op whose composite kernel would stand before a
/// fallback. Once a process. Throws UsageError if somebody has registered a kernel there.
void register_dispatch();

}  // namespace caravan

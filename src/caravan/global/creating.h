#pragma once

#include <memory>
#include <optional>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "caravan/global/context.h"

namespace caravan {

/// While one lives, the tensors that torch creates on this thread (empty, zeros, ones, full, rand, randn) are global
/// ones, of which each rank has the rows of its part of the mesh: a module that is made meanwhile is never whole on any
/// rank. distribute_module() then moves its parameters to their layouts. Random values depend on the context's seed and
/// the order of calls, not on the mesh: a module starts equal on any number of ranks, but not equal to one that torch's
/// generator has filled.
///
///   Net net = nullptr;
///   { const CreatesGlobal spread(context); net = Net(config); }
///   distribute_module(*net, layouts, context);
///
/// Every rank makes the same tensors in the same order. Not for several at once on one thread.
class CreatesGlobal {
 public:
  explicit CreatesGlobal(const GlobalContext& context);
  ~CreatesGlobal();
  CreatesGlobal(const CreatesGlobal&) = delete;
  CreatesGlobal& operator=(const CreatesGlobal&) = delete;

 private:
  c10::impl::LocalDispatchKeySet before_;
  c10::impl::IncludeDispatchKeyGuard to_us_;
  c10::impl::ExcludeDispatchKeyGuard not_by_device_;
};

/// Whether a CreatesGlobal lives on this thread.
bool is_creating_global() noexcept;
/// The dispatch keys of this thread without it, during its lifetime: for ops on pieces, and tensors of our own.
class NotCreatingGlobal {
 public:
  NotCreatingGlobal();

 private:
  std::optional<c10::impl::ForceDispatchKeyGuard> before_;
};

/// An op that takes no global tensor, while a CreatesGlobal lives: makes a global tensor, or runs as it is. Called
/// below autograd, under NotCreatingGlobal.
void create_or_run(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace caravan

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "caravan/global/solve.h"
#include "caravan/global/state.h"

namespace caravan {

/// The elements of a label that this rank has: `length` from `begin` on. A label that is cut in blocks has no such
/// range.
struct LabelRange {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t whole = 0;
};

/// The sum, or another reduction, of `x` over an axis, on all of its ranks: a new tensor. Collective.
at::Tensor reduced_over(const MeshAxis& axis, const at::Tensor& x, ReduceOp op, std::string_view what);

/// An op that is about to run on pieces: what a LocalKernel sees. Its arguments are pieces already. The kernel takes
/// them, and pushes what the op returns.
class LocalCall {
 public:
  LocalCall(const c10::OperatorHandle& op, torch::jit::Stack& stack, const Placing& placing, GlobalState& state)
      : op_(op), stack_(stack), placing_(placing), state_(state), num_arguments_(op.schema().arguments().size()) {}

  c10::IValue& argument(std::string_view name);
  bool has_argument(std::string_view name) const { return op_.schema().argumentIndexWithName(name).has_value(); }
  at::Tensor tensor(std::string_view name);
  /// The op as it is, on its arguments.
  void run();
  /// What it has returned, after run().
  c10::IValue& result(size_t i = 0) { return stack_[stack_.size() - op_.schema().returns().size() + i]; }
  /// Drops the arguments and returns these. Those of arguments out= are written to them.
  void give(std::vector<c10::IValue> outputs);
  void give(at::Tensor output);

  /// The axes that cut the label, the major one first.
  std::vector<const MeshAxis*> axes_of(char label) const;
  bool is_cut(char label) const { return !axes_of(label).empty(); }
  LabelRange range(char label) const;
  GlobalState& state() const noexcept { return state_; }
  const Placing& placing() const noexcept { return placing_; }
  std::string name() const { return op_.schema().name(); }
  const c10::FunctionSchema& schema() const { return op_.schema(); }

  /// The sum, or maximum, of `x` over the axes that cut the label, on all of them. Collective.
  at::Tensor sum_over(char label, const at::Tensor& x);
  at::Tensor max_over(char label, const at::Tensor& x);
  /// The same over each of the labels.
  at::Tensor sum_over(std::string_view labels, const at::Tensor& x);
  at::Tensor max_over(std::string_view labels, const at::Tensor& x);
  /// reduced_over(), as this op.
  at::Tensor reduce_over(const MeshAxis& axis, const at::Tensor& x, ReduceOp op) {
    return reduced_over(axis, x, op, name());
  }

 private:
  at::Tensor reduce(char label, const at::Tensor& x, ReduceOp op);

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  const Placing& placing_;
  GlobalState& state_;
  size_t num_arguments_;
};

}  // namespace caravan

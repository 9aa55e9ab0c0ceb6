#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "caravan/global/operand.h"
#include "caravan/redistribute/labels.h"

namespace caravan {

class LocalCall;

/// Runs instead of the op where a label is cut that the op itself cannot have cut.
using LocalKernel = std::function<void(LocalCall&)>;

/// An argument of ints that depends on what a rank holds: sizes with these dims, or the extent of a label. An entry of
/// a dim that nobody cuts keeps its value.
struct LocalArgument {
  int argument = 0;  ///< number in the schema
  Dims dims{};
};

/// What a rule says of one call: its type, and what is different on a piece.
struct TypedCall {
  std::vector<Dims> inputs{};   ///< of each operand, in the order of OpCall::operands()
  std::vector<Dims> outputs{};  ///< of each tensor that the op returns; lists are taken apart
  std::string whole{};          ///< OpType::whole
  std::vector<std::vector<int>> terms{};
  /// Operands whose value the op does not read, only writes (copy_, out=): they lie as the outputs do, in their order.
  /// A rule may leave out operands out=, which are then added.
  std::vector<int> overwritten{};
  /// Operands of which the op reads sizes and type, but no element: a sum that is pending in one stays there, and
  /// counts as whole.
  std::vector<int> unread{};
  /// Operands that the op writes although its schema does not say so.
  std::vector<int> written{};
  std::map<char, int64_t> extents{};  ///< of labels that stand in no dim of an operand alone
  std::vector<LocalArgument> local_arguments{};
  /// With a kernel: the labels that it can have cut, in addition to those that are not in `whole`. It runs only if one
  /// of these is cut.
  std::string kernel_labels{};
  LocalKernel kernel{};
  /// Outputs that every rank gets whole where a label of the kernel is cut (any label, if kernel_labels are empty): no
  /// summands of a sum.
  std::vector<int> whole_outputs{};
  /// Outputs that do not depend on what is in `terms`: whole where the others are summands because an operand is one.
  std::vector<int> constant_outputs{};
  /// Of a rule that chooses layouts itself: of each operand, and of each output.
  std::optional<std::pair<std::vector<Layout>, std::vector<Layout>>> layouts{};
};

/// A call of an op by its global operands, as rules see it. Cheap to make; arguments are found by name.
class OpCall {
 public:
  OpCall(const c10::OperatorHandle& op, const c10::IValue* arguments, std::vector<GlobalOperand> operands)
      : op_(op), arguments_(arguments), operands_(std::move(operands)) {}

  const c10::FunctionSchema& schema() const { return op_.schema(); }
  /// "aten::add.Tensor".
  std::string name() const;
  const std::vector<GlobalOperand>& operands() const noexcept { return operands_; }
  const GlobalOperand& operand(size_t i) const { return operands_.at(i); }
  int num_operands() const noexcept { return static_cast<int>(operands_.size()); }
  /// Without those of arguments out=, which come last.
  int num_read() const;
  std::vector<int64_t> sizes(size_t i) const { return operands_.at(i).sizes; }
  int64_t num_dims(size_t i) const { return static_cast<int64_t>(operands_.at(i).sizes.size()); }

  /// Number of an argument in the schema; -1 if there is none of this name.
  int index(std::string_view argument) const;
  const c10::IValue& value(std::string_view argument) const;
  bool has(std::string_view argument) const { return index(argument) >= 0 && !value(argument).isNone(); }
  int64_t integer(std::string_view argument, int64_t absent = 0) const;
  bool flag(std::string_view argument, bool absent = false) const;
  /// The modulus of a complex one.
  double number(std::string_view argument, double absent = 0) const;
  /// A list of ints; of one element for an int.
  std::vector<int64_t> integers(std::string_view argument) const;
  /// The operand that is this argument, or its first element; -1 if it is None.
  int operand_of(std::string_view argument) const;
  /// The operands of a list of tensors.
  std::vector<int> operands_of(std::string_view argument) const;
  /// A dim from 0 on; `num_dims` of the operand.
  int64_t dim(std::string_view argument, size_t operand = 0) const;

 private:
  const c10::OperatorHandle& op_;
  const c10::IValue* arguments_;
  std::vector<GlobalOperand> operands_;
};

/// Nothing: the call has no rule, so that it runs on whole tensors.
using TypedResult = std::optional<TypedCall>;
using Rule = std::function<TypedResult(const OpCall&)>;

/// Rules by "aten::add.Tensor", or by "aten::add" for all overloads that have none of their own.
class RuleTable {
 public:
  void add(std::string_view name, Rule rule);
  void add(std::initializer_list<std::string_view> names, const Rule& rule);
  /// An op with the same labels for every call: "mk,kn->mn".
  void add(std::string_view name, const OpType& type);
  const Rule* find(const c10::OperatorHandle& op) const;
  const std::map<std::string, Rule, std::less<>>& all() const noexcept { return rules_; }

 private:
  std::map<std::string, Rule, std::less<>> rules_;
};

/// All rules of the library, made at the first call, and those of register_rule.
RuleTable& rule_table();

/// Letters for labels, each used once in a call.
class Labels {
 public:
  char next();
  Dims next(int64_t num_dims);
  /// A label for each dim of a tensor; dims of one element get none.
  Dims of(const std::vector<int64_t>& sizes);
  /// The same, but dims of one element that are cut get one too.
  Dims of(const GlobalOperand& operand);

 private:
  int used_ = 0;
};

}  // namespace caravan

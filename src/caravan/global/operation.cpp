#include "caravan/global/operation.h"

#include <algorithm>
#include <complex>
#include <mutex>
#include <shared_mutex>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/global/rules/rules.h"

namespace caravan {
namespace {

std::shared_mutex rules_mutex;  // rank threads register rules of their own and look others up

}  // namespace

std::string OpCall::name() const { return c10::toString(op_.operator_name()); }

int OpCall::num_read() const {
  const auto& arguments = schema().arguments();
  return static_cast<int>(std::ranges::count_if(
      operands_, [&](const GlobalOperand& operand) { return !arguments[operand.argument].is_out(); }));
}

int OpCall::index(std::string_view argument) const { return schema().argumentIndexWithName(argument).value_or(-1); }

const c10::IValue& OpCall::value(std::string_view argument) const {
  const int i = index(argument);
  if (i >= 0) return arguments_[i];
  throw InternalError(
      {"global", name(), fmt::format("its rule asks for an argument {}", argument), "", "name one of its schema"});
}

int64_t OpCall::integer(std::string_view argument, int64_t absent) const {
  if (!has(argument)) return absent;
  const c10::IValue& value = this->value(argument);
  return value.isList() ? value.toListRef().front().toInt() : value.toScalar().toLong();
}

bool OpCall::flag(std::string_view argument, bool absent) const {
  return has(argument) ? value(argument).toBool() : absent;
}

double OpCall::number(std::string_view argument, double absent) const {
  if (!has(argument)) return absent;
  const c10::Scalar number = value(argument).toScalar();
  return number.isComplex() ? std::abs(number.toComplexDouble()) : number.toDouble();
}

std::vector<int64_t> OpCall::integers(std::string_view argument) const {
  std::vector<int64_t> all;
  if (!has(argument)) return all;
  const c10::IValue& value = this->value(argument);
  if (!value.isList()) return {value.toInt()};
  for (const c10::IValue& each : value.toListRef()) all.push_back(each.toInt());
  return all;
}

int OpCall::operand_of(std::string_view argument) const {
  const std::vector<int> all = operands_of(argument);
  return all.empty() ? -1 : all.front();
}

std::vector<int> OpCall::operands_of(std::string_view argument) const {
  const int wanted = index(argument);
  std::vector<int> all;
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (operands_[i].argument == wanted) all.push_back(static_cast<int>(i));
  }
  return all;
}

int64_t OpCall::dim(std::string_view argument, size_t operand) const {
  const int64_t dim = integer(argument);
  return dim < 0 ? dim + num_dims(operand) : dim;
}

void RuleTable::add(std::string_view name, Rule rule) {
  const std::lock_guard lock(rules_mutex);
  rules_[std::string(name)] = std::move(rule);
}

void RuleTable::add(std::initializer_list<std::string_view> names, const Rule& rule) {
  for (const std::string_view name : names) add(name, rule);
}

void RuleTable::add(std::string_view name, const OpType& type) {
  add(name, [type](const OpCall& call) -> std::optional<TypedCall> {
    LabelledOp op(type, call.operands().size());
    TypedCall operation;
    operation.inputs = std::move(op.inputs);
    operation.outputs = std::move(op.outputs);
    operation.whole = type.whole;
    operation.terms = type.terms;
    operation.extents = type.extents;
    return operation;
  });
}

const Rule* RuleTable::find(const c10::OperatorHandle& op) const {
  const std::shared_lock lock(rules_mutex);
  const std::string& name = op.schema().name();
  auto found = rules_.find(name + "." + op.schema().overload_name());
  if (found == rules_.end()) found = rules_.find(name);
  return found == rules_.end() ? nullptr : &found->second;
}

RuleTable& rule_table() {
  static RuleTable table = [] {
    RuleTable rules;
    add_pointwise_rules(rules);
    add_creation_rules(rules);
    add_view_rules(rules);
    add_reduction_rules(rules);
    add_product_rules(rules);
    add_attention_rules(rules);
    add_normalization_rules(rules);
    add_softmax_rules(rules);
    add_index_rules(rules);
    add_loss_rules(rules);
    add_convolution_rules(rules);
    add_pooling_rules(rules);
    add_sequence_rules(rules);
    add_recurrent_rules(rules);
    add_random_rules(rules);
    add_linear_algebra_rules(rules);
    return rules;
  }();
  return table;
}

char Labels::next() {
  static constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const int i = used_++;
  if (i < static_cast<int>(kLetters.size())) return kLetters[i];
  const int other = i - static_cast<int>(kLetters.size());
  if (other < 128) return static_cast<char>(128 + other);
  throw InternalError({"global", "a rule", "uses more than 180 labels", "", "treat the dims as whole"});
}

Dims Labels::next(int64_t num_dims) {
  Dims dims;
  for (int64_t i = 0; i < num_dims; ++i) dims.emplace_back(1, next());
  return dims;
}

Dims Labels::of(const std::vector<int64_t>& sizes) {
  Dims dims;
  for (const int64_t size : sizes) dims.push_back(size == 1 ? "" : std::string(1, next()));
  return dims;
}

Dims Labels::of(const GlobalOperand& operand) {
  Dims dims;
  for (size_t dim = 0; dim < operand.sizes.size(); ++dim) {
    const bool has_label = operand.sizes[dim] != 1 || operand.is_cut(dim);
    dims.push_back(has_label ? std::string(1, next()) : "");
  }
  return dims;
}

}  // namespace caravan

#include "caravan/module/plan/layout_table.h"

#include <array>
#include <cstdio>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/mesh/fit.h"
#include "caravan/module/parameter.h"

namespace caravan {
namespace {

std::string module_name(std::string_view what) { return what.empty() ? "the model" : std::string(what); }

std::vector<std::string_view> labels_of(std::string_view labels) {
  std::vector<std::string_view> each;
  const size_t arrow = labels.find("->");
  std::string_view inputs = labels.substr(0, arrow);
  for (size_t comma = inputs.find(','); comma != inputs.npos; comma = inputs.find(',')) {
    each.push_back(inputs.substr(0, comma));
    inputs.remove_prefix(comma + 1);
  }
  each.push_back(inputs);
  each.push_back(arrow == labels.npos ? "" : labels.substr(arrow + 2));
  return each;
}

/// A shard is a dim's number: with an extra label it would be mistaken for one of another dim.
void check_labels(const OpType& op, const std::vector<size_t>& num_dims, std::string_view what) {
  const std::vector<std::string_view> labels = labels_of(op.labels);
  if (labels.size() != num_dims.size()) return;  // infer() reports it
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i].size() == num_dims[i]) continue;
    throw InternalError({"type", module_name(what) + ", op " + std::string(op.labels),
                         fmt::format("a tensor of {} dims has the labels '{}'", num_dims[i], labels[i]), "",
                         "write one letter a dim"});
  }
}

/// Replaces "operand 1" in messages of infer().
std::string with_names(std::string text, const std::vector<std::string>& names) {
  for (size_t i = names.size(); i-- > 0;) {  // operand 10 before operand 1
    const std::string number = fmt::format("operand {}", i);
    for (size_t at = text.find(number); at != text.npos; at = text.find(number, at + names[i].size())) {
      text.replace(at, number.size(), names[i]);
    }
  }
  return text;
}

/// Translates an action of infer() to a plan: "redistribute operand 1 I -> R first".
std::string in_a_plan(const std::string& action, std::initializer_list<LayoutTable::Operand> operands) {
  unsigned index = 0;
  std::array<char, 16> to{};
  if (std::sscanf(action.c_str(), "redistribute operand %u %*s -> %15[RIPS()0-9]", &index, to.data()) != 2 ||
      index >= operands.size()) {
    return "";
  }
  if ((operands.begin() + index)->parameter == nullptr) {
    return "; in the plan: by `inputs` of the module that takes it, or `outputs` of the one that makes it";
  }
  const char* level = to[0] == 'R' ? "unsharded" : to[0] == 'S' ? "sharded" : "compute";
  return fmt::format("; in the plan: {} {}", level, to.data());
}

}  // namespace

void LayoutTable::set(const at::Tensor& tensor, Layout layout, std::string origin) {
  Entry& entry = entries_[tensor.unsafeGetTensorImpl()];
  entry.tensor = tensor;
  entry.layout = merged(std::move(layout));
  if (!origin.empty()) entry.origin = std::move(origin);
}

Layout LayoutTable::merged(Layout layout) const {
  if (has_gradients_) return layout;
  std::vector<Layout::Entry> entries = layout.entries();
  for (auto& [axis, placement] : entries) {
    if (placement.is_replicate()) placement = Invariant{};
  }
  return Layout(std::move(entries));
}

bool LayoutTable::has(const at::Tensor& tensor) const noexcept {
  return entries_.contains(tensor.unsafeGetTensorImpl());
}

const Layout& LayoutTable::of(const at::Tensor& tensor, std::string_view what) const {
  const auto entry = entries_.find(tensor.unsafeGetTensorImpl());
  if (entry != entries_.end()) return entry->second.layout;
  throw LayoutError({"plan", module_name(what),
                     fmt::format("takes {} that came from an operation without a type", origin(tensor)), "",
                     "compute it with a typed function of nn/ops.h, or tell the context's LayoutTable what the "
                     "operation does"});
}

std::string LayoutTable::origin(const at::Tensor& tensor) const {
  const auto entry = entries_.find(tensor.unsafeGetTensorImpl());
  if (entry != entries_.end() && !entry->second.origin.empty()) return entry->second.origin;
  return "a tensor " + shape_text(tensor.sizes().data(), tensor.sizes().size());
}

void LayoutTable::infer(const OpType& op, const at::Tensor& result, std::initializer_list<Operand> operands,
                        std::string_view what) {
  std::vector<Layout> layouts;
  std::vector<bool> constant;
  std::vector<std::string> names;
  std::vector<size_t> num_dims;
  std::string where;
  for (const auto& [tensor, parameter] : operands) {
    layouts.push_back(parameter != nullptr ? merged(parameter->compute_layout()) : of(*tensor, what));
    constant.push_back(!has_gradients_ || (parameter == nullptr && !tensor->is_floating_point()));
    names.push_back(parameter != nullptr ? "parameter " + parameter->name() : origin(*tensor));
    num_dims.push_back(parameter != nullptr ? parameter->global_shape().size() : tensor->sizes().size());
    where += fmt::format("; {} is {}", names.back(), layouts.back().to_string());
  }
  num_dims.push_back(result.sizes().size());
  check_labels(op, num_dims, what);
  try {
    set(result, caravan::infer(op, layouts, constant), "the output of " + module_name(what));
  } catch (const LayoutError& error) {
    const ErrorText& text = error.text();
    throw LayoutError({"plan", module_name(what) + ", op " + std::string(op.labels), with_names(text.fact, names),
                       with_names(text.where, names) + where,
                       with_names(text.action, names) + in_a_plan(text.action, operands)});
  }
}

}  // namespace caravan

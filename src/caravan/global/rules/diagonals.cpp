#include <utility>

#include <ATen/core/Tensor.h>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/shapes.h"

namespace caravan {
namespace {

/// The two dims of a diagonal, of a tensor with `num_dims`.
std::pair<int64_t, int64_t> diagonal_dims(const OpCall& call, int64_t num_dims) {
  return {wrapped(call.integer("dim1"), num_dims), wrapped(call.integer("dim2"), num_dims)};
}

Sizes without(int64_t num_dims, std::pair<int64_t, int64_t> dropped) {
  Sizes order;
  for (int64_t dim = 0; dim < num_dims; ++dim) {
    if (dim != dropped.first && dim != dropped.second) order.push_back(dim);
  }
  return order;
}

TypedResult diagonal(const OpCall& call) {
  const auto dims = diagonal_dims(call, call.num_dims(0));
  Sizes order = without(call.num_dims(0), dims);
  order.push_back(-1);
  TypedCall operation = reordered(call, order);
  operation.whole = operation.inputs[0][dims.first] + operation.inputs[0][dims.second];
  return operation;
}

/// A new dim for each of `dims`, from the last dim of operand 0, which is whole.
TypedCall spread_last_dim(const OpCall& call, std::pair<int64_t, int64_t> dims) {
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0))}, .terms = {{0}}};
  operation.whole = operation.inputs[0].back();
  Dims output(operation.inputs[0].begin(), operation.inputs[0].end() - 1);
  if (dims.second < dims.first) std::swap(dims.first, dims.second);
  output.insert(output.begin() + dims.first, "");
  output.insert(output.begin() + dims.second, "");
  operation.outputs = {std::move(output)};
  return operation;
}

TypedResult diag_embed(const OpCall& call) { return spread_last_dim(call, diagonal_dims(call, call.num_dims(0) + 1)); }

TypedResult diagonal_backward(const OpCall& call) {
  TypedCall operation = spread_last_dim(call, diagonal_dims(call, call.num_dims(0) + 1));
  operation.local_arguments = {{call.index("input_sizes"), operation.outputs[0]}};
  return operation;
}

/// self with src in some place: a sum of what is left of self, and src. `src` has these labels.
TypedCall replaced(const OpCall& call, const Sizes& whole_dims, const Sizes& order) {
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0)), {}}, .terms = {{0}, {1}}};
  const Dims& self = operation.inputs[0];
  for (const int64_t dim : whole_dims) operation.whole += self[dim];
  const Sizes sizes = call.sizes(1);
  for (size_t dim = 0; dim < order.size(); ++dim) {
    std::string label = order[dim] < 0 ? std::string(1, labels.next()) : self[order[dim]];
    if (order[dim] < 0) operation.whole += label;
    operation.inputs[1].push_back(sizes.at(dim) == 1 ? "" : std::move(label));
  }
  operation.outputs = {self};
  return operation;
}

TypedResult diagonal_scatter(const OpCall& call) {
  const auto dims = diagonal_dims(call, call.num_dims(0));
  Sizes order = without(call.num_dims(0), dims);
  order.push_back(-1);
  if (call.num_dims(1) != static_cast<int64_t>(order.size())) return std::nullopt;
  return replaced(call, {dims.first, dims.second}, order);
}

TypedResult select_scatter(const OpCall& call) {
  const int64_t dim = call.dim("dim");
  Sizes order = identity_order(call.num_dims(0));
  order.erase(order.begin() + dim);
  if (call.num_dims(1) != static_cast<int64_t>(order.size())) return std::nullopt;
  return replaced(call, {dim}, order);
}

TypedResult slice_scatter(const OpCall& call) {
  const int64_t dim = call.dim("dim");
  Sizes order = identity_order(call.num_dims(0));
  order[dim] = -1;
  if (call.num_dims(1) != call.num_dims(0)) return std::nullopt;
  return replaced(call, {dim}, order);
}

/// Windows of one dim as a new last dim.
TypedResult unfold(const OpCall& call) {
  if (call.num_dims(0) == 0) return std::nullopt;
  const int64_t dim = call.dim("dimension");
  TypedCall operation = within_dims(call, {dim});
  operation.outputs[0][dim] = "";
  operation.outputs[0].emplace_back();
  return operation;
}

TypedResult unfold_backward(const OpCall& call) {
  const Sizes sizes = call.integers("input_sizes");
  if (sizes.empty()) return std::nullopt;
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0))}, .terms = {{0}}};
  const int64_t dim = wrapped(call.integer("dim"), static_cast<int64_t>(sizes.size()));
  operation.whole = operation.inputs[0][dim] + operation.inputs[0].back();
  Dims output(operation.inputs[0].begin(), operation.inputs[0].end() - 1);
  output[dim] = "";
  operation.outputs = {output};
  operation.local_arguments = {{call.index("input_sizes"), std::move(output)}};
  return operation;
}

}  // namespace

void add_diagonal_rules(RuleTable& rules) {
  rules.add({"aten::diagonal", "aten::diagonal_copy"}, diagonal);
  rules.add("aten::diagonal_backward", diagonal_backward);
  rules.add("aten::diag_embed", diag_embed);
  rules.add("aten::diagonal_scatter", diagonal_scatter);
  rules.add("aten::select_scatter", select_scatter);
  rules.add("aten::slice_scatter", slice_scatter);
  rules.add({"aten::unfold", "aten::unfold_copy"}, unfold);
  rules.add("aten::unfold_backward", unfold_backward);
}

}  // namespace caravan

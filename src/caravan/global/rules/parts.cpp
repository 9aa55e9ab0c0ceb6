#include <algorithm>
#include <numeric>

#include <ATen/core/Tensor.h>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/shapes.h"

namespace caravan {
namespace {

// ---- parts of a dim ----

/// Labels of a dim of `size` elements whose parts begin and end at multiples of `unit`: blocks of it, which are whole,
/// and what each block has, which can be cut.
struct Blocks {
  std::string dim;
  char unit = 0;
};

Blocks blocks_of(int64_t size, int64_t unit, Labels& labels, TypedCall& operation) {
  Blocks blocks;
  blocks.unit = labels.next();
  operation.extents[blocks.unit] = unit;
  if (size != unit) {
    const char outer = labels.next();
    operation.extents[outer] = size / unit;
    operation.whole += outer;
    blocks.dim += outer;
  }
  if (unit != 1) blocks.dim += blocks.unit;
  return blocks;
}

/// A dim of `size` elements made of a new number of blocks.
std::string more_blocks(int64_t size, int64_t unit, const Blocks& blocks, Labels& labels, TypedCall& operation) {
  std::string dim;
  if (size != unit) {
    const char outer = labels.next();
    operation.extents[outer] = size / unit;
    operation.whole += outer;
    dim += outer;
  }
  if (unit != 1) dim += blocks.unit;
  return dim;
}

/// Parts of dim `dim` of these sizes, each an output.
TypedResult parts(const OpCall& call, int64_t dim, const Sizes& sizes) {
  Labels labels;
  const Sizes before = call.sizes(0);
  TypedCall operation{.inputs = {labels.of(before)}, .terms = {{0}}};
  int64_t unit = before[dim];
  for (const int64_t size : sizes) unit = std::gcd(unit, size);
  if (unit == 0) return std::nullopt;
  const Blocks blocks = blocks_of(before[dim], unit, labels, operation);
  operation.inputs[0][dim] = blocks.dim;
  for (const int64_t size : sizes) {
    Dims output = operation.inputs[0];
    output[dim] = more_blocks(size, unit, blocks, labels, operation);
    operation.outputs.push_back(std::move(output));
  }
  return operation;
}

TypedResult slice(const OpCall& call) {
  const int64_t dim = call.dim("dim");
  const int64_t size = call.sizes(0)[dim];
  const auto clamped = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
  const int64_t begin = clamped(call.integer("start", 0));
  const int64_t end = std::max(begin, clamped(call.integer("end", size)));
  const int64_t step = call.integer("step", 1);
  if (step == 1 && begin == 0 && end == size) {
    TypedCall operation = reordered(call, identity_order(call.num_dims(0)));
    operation.kernel_labels = operation.inputs[0][dim];
    operation.kernel = [](LocalCall& local) {
      local.give({local.tensor("self").slice(local.argument("dim").toInt())});
    };
    if (operation.kernel_labels.empty()) operation.kernel = nullptr;
    return operation;
  }
  const int64_t unit = std::gcd(std::gcd(begin, end - begin), size);
  if (step != 1 || unit <= 1 || begin == end) {
    Labels labels;
    TypedCall operation{.inputs = {labels.of(call.sizes(0))}, .terms = {{0}}};
    operation.outputs = operation.inputs;
    operation.outputs[0][dim] = "";
    operation.whole = operation.inputs[0][dim];
    return operation;
  }
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0))}, .terms = {{0}}};
  const Blocks blocks = blocks_of(size, unit, labels, operation);
  operation.inputs[0][dim] = blocks.dim;
  operation.outputs = operation.inputs;
  operation.outputs[0][dim] = more_blocks(end - begin, unit, blocks, labels, operation);
  operation.kernel_labels = std::string(1, blocks.unit);
  operation.kernel = [dim, first = begin / unit, last = end / unit, count = size / unit](LocalCall& local) {
    const at::Tensor self = local.tensor("self");
    const int64_t rows = self.size(dim) / count;
    local.give({self.slice(dim, first * rows, last * rows)});
  };
  return operation;
}

TypedResult slice_backward(const OpCall& call) {
  const Sizes sizes = call.integers("input_sizes");
  const int64_t dim = wrapped(call.integer("dim"), static_cast<int64_t>(sizes.size()));
  const int64_t start = call.integer("start");
  const int64_t begin = std::clamp<int64_t>(start < 0 ? start + sizes[dim] : start, 0, sizes[dim]);
  const int64_t length = call.sizes(0)[dim];
  const int64_t unit = std::gcd(std::gcd(begin, length), sizes[dim]);
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0))}, .terms = {{0}}};
  if (call.integer("step", 1) != 1 || unit <= 1) {
    operation.outputs = operation.inputs;
    operation.whole = operation.inputs[0][dim];
    const char label = labels.next();
    operation.outputs[0][dim] = std::string(1, label);
    operation.whole += label;
    operation.extents[label] = sizes[dim];
    operation.local_arguments = {{call.index("input_sizes"), operation.outputs[0]}};
    return operation;
  }
  const Blocks blocks = blocks_of(length, unit, labels, operation);
  operation.inputs[0][dim] = blocks.dim;
  operation.outputs = operation.inputs;
  operation.outputs[0][dim] = more_blocks(sizes[dim], unit, blocks, labels, operation);
  operation.local_arguments = {{call.index("input_sizes"), operation.outputs[0]}};
  operation.kernel_labels = std::string(1, blocks.unit);
  operation.kernel = [dim, first = begin / unit, last = (begin + length) / unit,
                      count = sizes[dim] / unit](LocalCall& local) {
    const at::Tensor grad = local.tensor("grad_output");
    const at::Tensor result = grad.new_zeros(local.argument("input_sizes").toIntVector());
    const int64_t rows = result.size(dim) / count;
    result.slice(dim, first * rows, last * rows).copy_(grad);
    local.give({result});
  };
  return operation;
}

TypedResult select(const OpCall& call) {
  Sizes order = identity_order(call.num_dims(0));
  const int64_t dim = call.dim("dim");
  order.erase(order.begin() + dim);
  TypedCall operation = reordered(call, order);
  operation.whole = operation.inputs[0][dim];
  return operation;
}

TypedResult select_backward(const OpCall& call) {
  const Sizes sizes = call.integers("input_sizes");
  const int64_t dim = wrapped(call.integer("dim"), static_cast<int64_t>(sizes.size()));
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0))}, .terms = {{0}}};
  operation.outputs = operation.inputs;
  const char label = labels.next();
  operation.outputs[0].insert(operation.outputs[0].begin() + dim, std::string(1, label));
  operation.whole = std::string(1, label);
  operation.extents[label] = sizes[dim];
  operation.local_arguments = {{call.index("input_sizes"), operation.outputs[0]}};
  return operation;
}

TypedResult unbind(const OpCall& call) {
  TypedCall operation = *select(call);
  operation.outputs.assign(call.sizes(0)[call.dim("dim")], operation.outputs[0]);
  return operation;
}

Sizes split_sizes(const OpCall& call, int64_t size) {
  if (call.index("split_sizes") >= 0) return call.integers("split_sizes");
  const int64_t each = call.integer("split_size");
  Sizes sizes;
  for (int64_t rest = size; rest > 0; rest -= each) sizes.push_back(std::min(each, rest));
  if (sizes.empty()) sizes.push_back(0);
  return sizes;
}

TypedResult split_parts(const OpCall& call) {
  const int64_t dim = call.dim("dim");
  const Sizes sizes = split_sizes(call, call.sizes(0)[dim]);
  auto operation = parts(call, dim, sizes);
  if (!operation) return operation;
  for (const char label : operation->inputs[0][dim]) {
    if (operation->whole.find(label) == std::string::npos) operation->kernel_labels += label;
  }
  if (operation->kernel_labels.empty()) return operation;
  operation->kernel = [dim, sizes, whole = call.sizes(0)[dim]](LocalCall& local) {
    const at::Tensor self = local.tensor("self");
    std::vector<int64_t> rows;
    for (const int64_t size : sizes) rows.push_back(size * self.size(dim) / whole);
    local.give({c10::IValue(self.split_with_sizes(rows, dim))});
  };
  return operation;
}

/// a * sigmoid(b) of the halves of a dim, which may be cut in two blocks.
TypedResult gated(const OpCall& call) {
  const int self = call.operand_of("self");
  const int64_t dim = call.dim("dim", self);
  Labels labels;
  TypedCall operation;
  Dims dims = labels.of(call.sizes(self));
  const Blocks blocks = blocks_of(call.sizes(self)[dim], call.sizes(self)[dim] / 2, labels, operation);
  Dims half = dims;
  dims[dim] = blocks.dim;
  half[dim] = call.sizes(self)[dim] == 2 ? "" : std::string(1, blocks.unit);
  operation.inputs = {dims};
  operation.outputs = {half};
  if (call.index("grad_output") >= 0) {
    operation.inputs = {half, dims};
    operation.outputs = {dims};
    operation.terms = {{0}};
  }
  return operation;
}

// ---- several tensors as one ----

/// Tensors one after another along a dim. It can be cut into the parts that divide all of them.
TypedResult cat(const OpCall& call) {
  Labels labels;
  int64_t num_dims = 0;
  for (int i = 0; i < call.num_operands(); ++i) num_dims = std::max(num_dims, call.num_dims(i));
  const int64_t dim = wrapped(call.integer("dim"), num_dims);
  int64_t unit = 0;
  int64_t rows = 0;
  const auto is_empty = [&](int i) { return call.num_dims(i) == 1 && call.sizes(i)[0] == 0 && num_dims > 1; };
  Sizes like;
  for (int i = 0; i < call.num_operands(); ++i) {
    if (is_empty(i)) continue;
    like = call.sizes(i);
    unit = std::gcd(unit, like[dim]);
    rows += like[dim];
  }
  if (like.empty() || unit == 0) return std::nullopt;
  TypedCall operation;
  Dims dims = labels.of(like);
  const Blocks blocks = blocks_of(rows, unit, labels, operation);
  for (int i = 0; i < call.num_operands(); ++i) {
    Dims own = dims;
    if (is_empty(i)) {
      own = {std::string(1, labels.next())};
      operation.whole += own[0];
    } else {
      own[dim] = more_blocks(call.sizes(i)[dim], unit, blocks, labels, operation);
    }
    operation.inputs.push_back(std::move(own));
    operation.terms.push_back({i});
  }
  dims[dim] = blocks.dim;
  operation.outputs = {dims};
  return operation;
}

TypedResult stack(const OpCall& call) {
  Labels labels;
  TypedCall operation;
  const Dims dims = labels.of(call.sizes(0));
  for (int i = 0; i < call.num_operands(); ++i) {
    operation.inputs.push_back(dims);
    operation.terms.push_back({i});
  }
  operation.outputs = {dims};
  const char label = labels.next();
  operation.whole = std::string(1, label);
  operation.extents[label] = call.num_operands();
  operation.outputs[0].insert(operation.outputs[0].begin() + wrapped(call.integer("dim"), call.num_dims(0) + 1),
                              std::string(1, label));
  return operation;
}

}  // namespace

void add_part_rules(RuleTable& rules) {
  rules.add({"aten::slice.Tensor", "aten::slice_copy.Tensor"}, slice);
  rules.add("aten::slice_backward", slice_backward);
  rules.add({"aten::select.int", "aten::select_copy.int"}, select);
  rules.add("aten::select_backward", select_backward);
  rules.add({"aten::unbind.int", "aten::unbind_copy.int"}, unbind);
  rules.add({"aten::split.Tensor", "aten::split_copy.Tensor", "aten::split_with_sizes", "aten::split_with_sizes_copy",
             "aten::unsafe_split.Tensor", "aten::unsafe_split_with_sizes"},
            split_parts);
  rules.add({"aten::glu", "aten::glu_backward"}, gated);
  rules.add({"aten::cat", "aten::concat"}, cat);
  rules.add({"aten::stack", "aten::_stack"}, stack);
}

}  // namespace caravan

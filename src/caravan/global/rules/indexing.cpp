#include <ATen/core/Tensor.h>
#include <ATen/ops/embedding.h>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/looked_up.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/shapes.h"

namespace caravan {

namespace {

/// A mask of indices along dim `dim` of a tensor with `num_dims` dims.
at::Tensor along(const at::Tensor& mask, int64_t dim, int64_t num_dims) {
  Sizes sizes(num_dims, 1);
  sizes[dim] = mask.numel();
  return mask.reshape(sizes);
}

// ---- reading ----

/// Rows of a table. Where its rows are cut, each rank reads those that it has: the others are 0 in its summand.
TypedResult embedding(const OpCall& call) {
  Labels labels;
  const Dims table = labels.of(call.sizes(0));
  const Dims index = labels.of(call.sizes(1));
  TypedCall operation{.inputs = {table, index}, .outputs = {index}, .whole = table[0], .terms = {{0}}};
  operation.outputs[0].push_back(table[1]);
  add_row_kernel(operation, call, table[0], [label = table[0]](LocalCall& local) {
    const OwnRows own = own_rows(local.tensor("indices"), local.range(label[0]));
    const at::Tensor rows = at::embedding(with_a_row(local.tensor("weight"), 0), own.rows);
    local.give({rows.masked_fill_(own.elsewhere.unsqueeze(-1), 0)});
  });
  return operation;
}

/// Sums over all indices; frequencies need all of them.
TypedResult embedding_dense_backward(const OpCall& call) {
  Labels labels;
  const Dims index = labels.of(call.sizes(1));
  Dims grad = index;
  grad.push_back(call.sizes(0).back() == 1 ? "" : std::string(1, labels.next()));
  const char row = labels.next();
  TypedCall operation{.inputs = {grad, index}, .outputs = {{std::string(1, row), grad.back()}}, .terms = {{0}}};
  operation.whole = std::string(1, row);
  operation.extents[row] = call.integer("num_weights");
  if (call.flag("scale_grad_by_freq")) {
    for (const std::string& dim : index) operation.whole += dim;
  }
  return operation;
}

TypedResult index_select(const OpCall& call) {
  if (call.num_dims(0) == 0) return std::nullopt;
  const int64_t dim = call.dim("dim");
  Labels labels;
  const Dims self = labels.of(call.sizes(0));
  const Dims index = labels.of(call.sizes(1));
  TypedCall operation{.inputs = {self, index}, .outputs = {self}, .whole = self[dim], .terms = {{0}}};
  operation.outputs[0][dim] = index.empty() ? "" : index[0];
  add_row_kernel(operation, call, self[dim], [dim, label = self[dim]](LocalCall& local) {
    const OwnRows own = own_rows(local.tensor("index"), local.range(label[0]));
    const at::Tensor table = with_a_row(local.tensor("self"), dim);
    const at::Tensor rows = table.index_select(dim, own.rows);
    local.give({rows.masked_fill_(along(own.elsewhere, dim, table.dim()), 0)});
  });
  return operation;
}

/// Labels of the operands self, index and src of gather and scatter. Dims other than `dim` are independent where all
/// have the same size; else the index means the first rows of a longer operand, and they are whole.
TypedCall along_dim(const OpCall& call, int64_t dim, bool has_src) {
  const size_t num_operands = has_src ? 3 : 2;
  Labels labels;
  TypedCall operation;
  operation.inputs.resize(num_operands);
  const auto size = [&](size_t i, int64_t d) { return call.operand(i).sizes[d]; };
  for (int64_t d = 0; d < call.num_dims(0); ++d) {
    const bool is_same = size(0, d) == size(1, d) && (!has_src || size(2, d) == size(1, d));
    bool is_cut = false;  // dims of one element have labels only then
    for (size_t i = 0; i < num_operands; ++i) is_cut = is_cut || call.operand(i).is_cut(d);
    const std::string shared(1, labels.next());
    for (size_t i = 0; i < num_operands; ++i) {
      std::string label = shared;
      const bool follows_index = d == dim && i == 2 && size(2, d) == size(1, d);
      if (follows_index) {
        label = operation.inputs[1][d];
      } else if (d == dim ? i > 0 : !is_same) {
        label = std::string(1, labels.next());
      }
      if (size(i, d) == 1 && !is_cut) label = "";
      if (d == dim ? i != 1 && !follows_index : !is_same) operation.whole += label;
      operation.inputs[i].push_back(label);
    }
  }
  return operation;
}

bool have_same_dims(const OpCall& call, int num_operands) {
  for (int i = 0; i < num_operands; ++i) {
    if (call.num_dims(i) == 0 || call.num_dims(i) != call.num_dims(0)) return false;
  }
  return true;
}

TypedResult gather(const OpCall& call) {
  if (!have_same_dims(call, 2)) return std::nullopt;
  const int64_t dim = call.dim("dim");
  TypedCall operation = along_dim(call, dim, false);
  operation.outputs = {operation.inputs[1]};
  operation.terms = {{0}};
  const std::string label = operation.inputs[0][dim];
  add_row_kernel(operation, call, label, [dim, label](LocalCall& local) {
    const OwnRows own = own_rows(local.tensor("index"), local.range(label[0]));
    const at::Tensor found = with_a_row(local.tensor("self"), dim).gather(dim, own.rows);
    local.give({found.masked_fill_(own.elsewhere, 0)});
  });
  return operation;
}

// ---- writing ----

/// Adds to the rows that this rank has; `index` and `source` are the names of the arguments.
LocalKernel adds_own_rows(int64_t dim, const std::string& label, const char* source_name) {
  return [dim, label, source_name](LocalCall& local) {
    const LabelRange range = local.range(label[0]);
    const at::Tensor index = local.tensor("index");
    const at::Tensor source = local.tensor(source_name);
    const OwnRows own = own_rows(index, range);
    const bool is_list = index.dim() != source.dim();
    const at::Tensor mask = is_list ? along(own.elsewhere, dim, source.dim()) : own.elsewhere;
    if (range.length == 0) {
      local.argument("index") = index.narrow(is_list ? 0 : dim, 0, 0);
      local.argument(source_name) = source.narrow(dim, 0, 0);
    } else {
      local.argument("index") = own.rows;
      local.argument(source_name) = source.masked_fill(mask, 0);
    }
    local.run();
  };
}

/// Whether each element of src is added to one of self.
bool adds(const OpCall& call) {
  if (call.schema().name().starts_with("aten::scatter_add")) return true;
  if (call.index("reduce") < 0) return false;
  const std::string& reduce = call.value("reduce").toStringRef();
  return reduce == "add" || reduce == "sum";
}

TypedResult scatter(const OpCall& call) {
  const bool has_src = call.index("src") >= 0;
  if (!have_same_dims(call, has_src ? 3 : 2)) return std::nullopt;
  const int64_t dim = call.dim("dim");
  TypedCall operation = along_dim(call, dim, has_src);
  operation.outputs = {operation.inputs[0]};
  const std::string row = operation.inputs[0][dim];
  const std::string index = operation.inputs[1][dim];
  const bool is_sum = adds(call);
  const bool sums_self = is_sum && call.flag("include_self", true);
  const bool is_aligned = has_src && operation.inputs[2][dim] == index;
  if (!(sums_self && is_aligned && call.operand(0).is_floating)) operation.whole += index;
  if (has_src && (is_sum || call.index("reduce") < 0)) operation.terms = {{0}, {2}};
  if (!has_src && call.index("reduce") < 0 && call.number("value") == 0) operation.terms = {{0}};
  if (sums_self && is_aligned) add_row_kernel(operation, call, row, adds_own_rows(dim, row, "src"));
  return operation;
}

/// self, a list of rows, and what is done to them with source.
TypedCall rows_of_list(const OpCall& call, int64_t dim) {
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0)), labels.of(call.sizes(1))}};
  operation.outputs = {operation.inputs[0]};
  operation.whole = operation.inputs[0][dim];
  if (call.num_operands() < 3 || call.index("source") < 0) return operation;
  operation.inputs.push_back(operation.inputs[0]);
  operation.inputs[2][dim] = operation.inputs[1].empty() ? "" : operation.inputs[1][0];
  return operation;
}

TypedResult index_add(const OpCall& call) {
  if (call.num_dims(0) == 0 || call.num_dims(2) != call.num_dims(0)) return std::nullopt;
  const int64_t dim = call.dim("dim");
  TypedCall operation = rows_of_list(call, dim);
  operation.terms = {{0}, {2}};
  const std::string row = operation.inputs[0][dim];
  if (!call.operand(0).is_floating) operation.whole += operation.inputs[2][dim];
  if (call.num_dims(1) == 1) add_row_kernel(operation, call, row, adds_own_rows(dim, row, "source"));
  return operation;
}

TypedResult index_copy(const OpCall& call, bool is_linear) {
  if (call.num_dims(0) == 0 || call.num_dims(2) != call.num_dims(0)) return std::nullopt;
  const int64_t dim = call.dim("dim");
  TypedCall operation = rows_of_list(call, dim);
  operation.whole += operation.inputs[2][dim];
  if (is_linear) operation.terms = {{0}, {2}};
  return operation;
}

TypedResult index_fill(const OpCall& call) {
  if (call.num_dims(0) == 0) return std::nullopt;
  TypedCall operation = rows_of_list(call, call.dim("dim"));
  for (const std::string& dim : operation.inputs[1]) operation.whole += dim;
  if (call.operand_of("value") >= 0) {
    operation.inputs.emplace_back(call.num_dims(2), "");
    operation.terms = {{0}, {2}};
  } else if (call.number("value") == 0) {
    operation.terms = {{0}};
  }
  return operation;
}

// ---- sorted boundaries ----

TypedResult bucketize(const OpCall& call) {
  if (call.num_operands() < 2 || call.operand_of("self") != 0) return std::nullopt;
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0)), labels.of(call.sizes(1))}};
  operation.outputs = {operation.inputs[0]};
  for (const std::string& dim : operation.inputs[1]) operation.whole += dim;
  return operation;
}

/// Each value by itself; rows of values and of boundaries go together where there are many rows of boundaries.
TypedResult searchsorted(const OpCall& call) {
  if (call.operand_of("self") != 1 || call.num_dims(0) == 0) return std::nullopt;
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0)), labels.of(call.sizes(1))}};
  const std::string boundary = operation.inputs[0].back();
  operation.whole = boundary;
  if (call.num_dims(0) > 1) {
    if (call.num_dims(1) != call.num_dims(0)) return std::nullopt;
    for (int64_t dim = 0; dim + 1 < call.num_dims(0); ++dim) operation.inputs[1][dim] = operation.inputs[0][dim];
  }
  operation.outputs = {operation.inputs[1]};
  if (call.operand_of("sorter") >= 0) operation.inputs.push_back(operation.inputs[0]);
  return operation;
}

/// Whether each of the first elements is among the second, of which all are needed.
TypedResult isin(const OpCall& call) {
  const bool has_elements = call.operand_of("elements") >= 0;
  Labels labels;
  TypedCall operation;
  if (has_elements) operation.inputs.push_back(labels.of(call.sizes(0)));
  operation.outputs = {has_elements ? operation.inputs[0] : Dims{}};
  const int others = call.index("test_elements") < 0 ? -1 : call.operand_of("test_elements");
  if (others >= 0) {
    operation.inputs.push_back(labels.of(call.sizes(others)));
    for (const std::string& dim : operation.inputs.back()) operation.whole += dim;
  }
  return operation;
}

}  // namespace

void add_index_rules(RuleTable& rules) {
  rules.add("aten::embedding", embedding);
  rules.add("aten::embedding_dense_backward", embedding_dense_backward);
  rules.add("aten::index_select", index_select);
  rules.add("aten::gather", gather);
  rules.add({"aten::scatter", "aten::scatter_", "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce",
             "aten::scatter_reduce_"},
            scatter);
  rules.add({"aten::index_add", "aten::index_add_"}, index_add);
  rules.add({"aten::index_copy", "aten::index_copy_"}, [](const OpCall& call) { return index_copy(call, true); });
  rules.add({"aten::index_reduce", "aten::index_reduce_"}, [](const OpCall& call) { return index_copy(call, false); });
  rules.add({"aten::index_fill", "aten::index_fill_"}, index_fill);
  rules.add("aten::bucketize", bucketize);
  rules.add("aten::searchsorted", searchsorted);
  rules.add("aten::isin", isin);
  add_advanced_index_rules(rules);
}

}  // namespace caravan

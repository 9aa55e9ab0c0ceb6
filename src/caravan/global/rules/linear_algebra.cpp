#include <algorithm>

#include "caravan/global/rules/planes.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/shapes.h"

namespace caravan {
namespace {

/// Of each dim of the batch: whether it has one element in all operands, and is cut in one of them.
std::vector<bool> cut_ones(const OpCall& call, const Sizes& core, int64_t num_batch_dims) {
  std::vector<bool> are_cut(num_batch_dims, false);
  std::vector<bool> are_wide(num_batch_dims, false);
  for (size_t i = 0; i < core.size(); ++i) {
    const int64_t own = call.num_dims(i) - core[i];
    for (int64_t dim = 0; dim < own; ++dim) {
      const int64_t at = num_batch_dims - own + dim;
      if (call.operand(i).sizes[dim] != 1) are_wide[at] = true;
      if (call.operand(i).is_cut(dim)) are_cut[at] = true;
    }
  }
  for (size_t at = 0; at < are_cut.size(); ++at) are_cut[at] = are_cut[at] && !are_wide[at];
  return are_cut;
}

/// Ops on the last dims of each operand, which they need whole; the dims before are a batch, broadcast from the right.
/// `core`: the number of last dims of each operand; `results`: that of each output.
TypedResult batched(const OpCall& call, const Sizes& core, const Sizes& results) {
  int64_t num_batch_dims = 0;
  const auto num_operands = static_cast<int64_t>(core.size());
  if (call.num_operands() < num_operands) return std::nullopt;
  for (int64_t i = 0; i < num_operands; ++i) {
    if (call.num_dims(i) < core[i]) return std::nullopt;
    num_batch_dims = std::max(num_batch_dims, call.num_dims(i) - core[i]);
  }
  Labels labels;
  const Dims batch = labels.next(num_batch_dims);
  const std::vector<bool> are_cut_ones = cut_ones(call, core, num_batch_dims);
  Dims wide(num_batch_dims, "");
  TypedCall operation;
  for (int64_t i = 0; i < num_operands; ++i) {
    const Sizes sizes = call.sizes(i);
    const int64_t own = call.num_dims(i) - core[i];
    Dims dims;
    for (int64_t dim = 0; dim < call.num_dims(i); ++dim) {
      std::string label = dim < own ? batch[num_batch_dims - own + dim] : std::string(1, labels.next());
      const bool is_cut_one = dim < own && are_cut_ones[num_batch_dims - own + dim];
      if (sizes[dim] == 1 && !is_cut_one) label = "";
      if (dim < own && !label.empty()) wide[num_batch_dims - own + dim] = label;
      if (dim >= own) operation.whole += label;
      dims.push_back(std::move(label));
    }
    operation.inputs.push_back(std::move(dims));
  }
  for (const int64_t num_core_dims : results) {
    Dims dims = wide;
    dims.insert(dims.end(), num_core_dims, "");
    operation.outputs.push_back(std::move(dims));
  }
  return operation;
}

/// The outputs that are asked not to be computed have no elements, and no batch.
TypedResult with_empty(TypedResult operation, const std::vector<int>& empty) {
  if (!operation) return operation;
  for (const int i : empty) operation->outputs[i] = {""};
  operation->whole_outputs = empty;
  return operation;
}

Rule matrices(const Sizes& core, const Sizes& results) {
  return [core, results](const OpCall& call) { return batched(call, core, results); };
}

/// Equations whose right side is an operand: linear in it, with each column by itself, or each row of X A = B. The
/// first output is the solution; the others depend on the matrix alone.
TypedResult linear_in(TypedResult operation, int right, bool by_columns) {
  if (!operation) return operation;
  Dims& dims = operation->inputs[right];
  Dims& solution = operation->outputs[0];
  if (dims.size() >= 2) {
    const size_t from_end = by_columns ? 1 : 2;
    const std::string own = dims[dims.size() - from_end];
    solution[solution.size() - from_end] = own;
    std::erase_if(operation->whole, [&](char label) { return has_label({own}, label); });
  }
  operation->terms = {{right}};
  for (int i = 1; i < static_cast<int>(operation->outputs.size()); ++i) {
    operation->constant_outputs.push_back(i);
    operation->whole_outputs.push_back(i);
  }
  return operation;
}

Rule equations(const Sizes& core, const Sizes& results, int right) {
  return [core, results, right](const OpCall& call) {
    const bool is_left = call.index("left") < 0 || call.flag("left", true);
    return linear_in(batched(call, core, results), right, is_left);
  };
}

/// A right side that is a batch of vectors if it lacks one dim of a batch of matrices.
TypedResult solve_matrices(const OpCall& call) {
  const Sizes matrix = call.sizes(0);
  const Sizes right = call.sizes(1);
  const bool are_vectors = right.size() == 1 || (right.size() + 1 == matrix.size() &&
                                                 std::equal(right.begin(), right.end(), matrix.begin()));
  // Pieces of a batch could have the sizes by which vectors are told from matrices.
  if (!are_vectors && right.size() + 1 == matrix.size()) return std::nullopt;
  const int64_t core = are_vectors ? 1 : 2;
  auto operation = batched(call, {2, core}, {core, 2, 1, 0});
  if (!operation) return operation;
  for (int64_t i = 1; i < 4; ++i) {  // LU, pivots, info: as many as there are matrices
    Dims& output = operation->outputs[i];
    Dims own(operation->inputs[0].begin(), operation->inputs[0].end() - 2);
    own.insert(own.end(), output.end() - (3 - i), output.end());
    output = std::move(own);
  }
  if (!are_vectors) return linear_in(std::move(operation), 1, call.flag("left", true));
  operation->terms = {{1}};
  operation->constant_outputs = operation->whole_outputs = {1, 2, 3};
  return operation;
}

TypedResult svd(const OpCall& call) {
  auto operation = batched(call, {2}, {2, 1, 2});
  return call.flag("compute_uv", true) ? operation : with_empty(operation, {0, 2});
}

TypedResult eigh(const OpCall& call) {
  auto operation = batched(call, {2}, {1, 2});
  return call.flag("compute_v", true) ? operation : with_empty(operation, {1});
}

TypedResult qr(const OpCall& call) {
  auto operation = batched(call, {2}, {2, 2});
  return call.value("mode").toStringRef() == "r" ? with_empty(operation, {0}) : operation;
}

TypedResult lu(const OpCall& call) {
  auto operation = batched(call, {2}, {2, 2, 2});
  return call.flag("pivot", true) ? operation : with_empty(operation, {0});
}

TypedResult lu_unpack(const OpCall& call) {
  auto operation = batched(call, {2, 1}, {2, 2, 2});
  std::vector<int> empty;
  if (!call.flag("unpack_pivots", true)) empty.push_back(0);
  if (!call.flag("unpack_data", true)) empty.insert(empty.end(), {1, 2});
  return empty.empty() ? operation : with_empty(operation, empty);
}

/// Tolerances have the dims of the batch.
TypedResult pinv(const OpCall& call) {
  Sizes core{2};
  for (const char* tolerance : {"atol", "rtol"}) {
    if (call.operand_of(tolerance) >= 0) core.push_back(0);
  }
  return batched(call, core, {2});
}

/// Vectors along one dim; the others are broadcast.
TypedResult cross(const OpCall& call) {
  TypedCall operation = pointwise(call);
  operation.overwritten.clear();
  const int64_t num_dims = static_cast<int64_t>(operation.outputs[0].size());
  for (size_t i = 0; i < operation.inputs.size(); ++i) {
    if (call.num_dims(i) != num_dims) return std::nullopt;
  }
  operation.inputs.resize(2);
  operation.whole = operation.outputs[0][wrapped(call.integer("dim", -1), num_dims)];
  operation.terms = {{0, 1}};
  return operation;
}

TypedResult trace(const OpCall& call) {
  auto operation = batched(call, {2}, {0});
  if (operation) operation->terms = {{0}};
  return operation;
}

/// Transforms of some dims, which are whole and may get other sizes.
TypedResult fft(const OpCall& call) {
  TypedCall operation = within_dims(call, call.integers("dim"));
  for (const int64_t dim : call.integers("dim")) operation.outputs[0][wrapped(dim, call.num_dims(0))] = "";
  never_empty(call, operation);
  return operation;
}

}  // namespace

void add_linear_algebra_rules(RuleTable& rules) {
  rules.add("aten::_linalg_det", matrices({2}, {0, 2, 1}));
  rules.add("aten::_linalg_slogdet", matrices({2}, {0, 0, 2, 1}));
  rules.add("aten::_linalg_eigh", eigh);
  rules.add("aten::linalg_eig", matrices({2}, {1, 2}));
  rules.add({"aten::linalg_eigvals", "aten::_linalg_eigvals"}, matrices({2}, {1}));
  rules.add("aten::_linalg_svd", svd);
  rules.add("aten::_linalg_solve_ex", solve_matrices);
  rules.add({"aten::linalg_cholesky_ex", "aten::linalg_inv_ex"}, matrices({2}, {2, 0}));
  rules.add({"aten::cholesky", "aten::cholesky_inverse", "aten::linalg_matrix_exp", "aten::inverse"},
            matrices({2}, {2}));
  rules.add("aten::cholesky_solve", equations({2, 2}, {2}, 0));
  rules.add("aten::linalg_solve_triangular", equations({2, 2}, {2}, 1));
  rules.add("aten::triangular_solve", equations({2, 2}, {2, 2}, 0));
  rules.add("aten::linalg_qr", qr);
  rules.add("aten::geqrf", matrices({2}, {2, 1}));
  rules.add({"aten::linalg_householder_product", "aten::orgqr"}, matrices({2, 1}, {2}));
  rules.add("aten::ormqr", equations({2, 1, 2}, {2}, 2));
  rules.add("aten::linalg_lu", lu);
  rules.add("aten::linalg_lu_factor_ex", matrices({2}, {2, 1, 0}));
  rules.add("aten::linalg_lu_solve", equations({2, 1, 2}, {2}, 2));
  rules.add("aten::lu_unpack", lu_unpack);
  rules.add("aten::linalg_ldl_factor_ex", matrices({2}, {2, 1, 0}));
  rules.add("aten::linalg_ldl_solve", equations({2, 1, 2}, {2}, 2));
  rules.add("aten::linalg_pinv.atol_rtol_tensor", pinv);
  rules.add("aten::linalg_pinv.atol_rtol_tensor_out", pinv);
  rules.add("aten::linalg_cross", cross);
  rules.add("aten::trace", trace);
  rules.add({"aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c"}, fft);
}

}  // namespace caravan

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace caravan {

/// The structure of a local op, in einsum-like labels: "bsk,nk->bsn" is a linear layer, "bf,f->bf,b,b" an op with three
/// outputs. The op acts independently along each label of an output and sums over every other label, except for those
/// in `whole`, along which it needs all elements (softmax, the keys of an attention). A dim in parentheses is made of
/// several labels, the slowest first: "bht->b(ht)" flattens. '1' is a dim of one element, which nobody can cut.
struct OpType {
  std::string labels;
  std::string whole = {};
  /// The op is the sum of these terms, each the product of some operands: {{0, 1}} a product, {{0}, {1}} a sum,
  /// {{0}, {1, 2}} a product with a bias. Operands in no term, and {}: the op is not linear in them.
  std::vector<std::vector<int>> terms = {};
  /// Elements of each label; needed for those in parentheses.
  std::map<char, int64_t> extents = {};

  bool operator==(const OpType&) const = default;
};

}  // namespace caravan

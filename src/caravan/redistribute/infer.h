#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/mesh/layout.h"

namespace caravan {

/// The structure of a local op, in einsum-like labels: "bsk,nk->bsn" is a linear layer. The op acts independently along
/// each label of the output and sums over every other label, except for those in `whole`, along which it needs all
/// elements (softmax, the keys of an attention).
struct OpType {
  std::string_view labels;
  std::string_view whole = {};
  /// Groups of operands in which the op is (jointly) linear: {{0}, {1}} a product, {{0, 1}} a sum, {} a nonlinear op.
  std::vector<std::vector<int>> linear = {};
};

/// One operand of a local op: its placement on the axis. A constant needs no gradient (masks, ids, counts) and counts
/// as both R and I.
struct Operand {
  Placement placement;
  bool is_constant = false;
};

/// The typing rule of local ops on one axis: all I -> I; all R -> R; one label sharded wherever it occurs and R
/// elsewhere -> S, or P if the op sums over it; P through an op that is linear in it and R elsewhere -> P. Everything
/// else throws LayoutError that says which redistribution fixes it. The rule is exact: whatever it rejects gives a
/// wrong value or gradient.
Placement infer(const OpType& op, std::span<const Operand> operands);

/// The rule on every axis: the layout of the output, including the order of axes on each dim. Throws LayoutError if two
/// operands shard one label by the same axes in another order.
Layout infer(const OpType& op, std::span<const Layout> operands, const std::vector<bool>& constant = {});

}  // namespace caravan

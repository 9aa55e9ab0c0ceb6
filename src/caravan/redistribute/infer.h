#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/mesh/layout.h"

namespace caravan {

/// What a local op does with its operands, by einsum-like labels: "bsk,nk->bsn" is a linear. It acts independently
/// along a label of the output and sums over a label that is not there, except those in `whole`, of which it needs all
/// (softmax, the keys of an attention).
struct OpType {
  std::string_view labels;
  std::string_view whole = {};
  /// Groups of operands in which the op is (jointly) linear: {{0}, {1}} a product, {{0, 1}} a sum, {} a nonlinear op.
  std::vector<std::vector<int>> linear = {};
};

/// One operand of a local op: its placement on the axis, and whether it needs no gradient (masks, ids, counts: R and I
/// at once).
struct Operand {
  Placement placement;
  bool is_constant = false;
};

/// The typing rule of local ops on one axis: all I -> I; all R -> R; one label sharded wherever it occurs and R
/// elsewhere -> S, or P if the op sums over it; P through an op linear in it and R elsewhere -> P. Everything else
/// throws LayoutError, saying which redistribution would mend it. The rule is exact: what it refuses gives a wrong
/// value or gradient.
Placement infer(const OpType& op, std::span<const Operand> operands);

/// The rule on every axis of the operands' layouts, with the order of axes on each dim: the layout of the output.
/// Throws LayoutError if two operands disagree in the order of axes on one label.
Layout infer(const OpType& op, std::span<const Layout> operands, const std::vector<bool>& constant = {});

}  // namespace caravan

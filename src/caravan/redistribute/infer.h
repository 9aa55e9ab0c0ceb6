#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "caravan/mesh/layout.h"
#include "caravan/redistribute/labels.h"
#include "caravan/redistribute/op_type.h"

namespace caravan {

/// One operand of a local op: its placement on the axis. A constant needs no gradient (masks, ids, counts) and counts
/// as both R and I.
struct Operand {
  Placement placement;
  bool is_constant = false;
};

/// The typing rule of local ops on one axis: all I -> I; all R -> R; one label sharded wherever it occurs and R
/// elsewhere -> S, or P if the op sums over it; P through an op that is linear in it and R elsewhere -> P. Everything
/// else throws LayoutError that says which redistribution fixes it. The rule is exact: whatever it rejects gives a
/// wrong value or gradient. For ops with one output and without dims of several labels.
Placement infer(const OpType& op, std::span<const Operand> operands);

/// The rule on every axis: the layout of the output, including the order of axes on each dim. Throws LayoutError if two
/// operands shard one label by the same axes in another order.
Layout infer(const OpType& op, std::span<const Layout> operands, const std::vector<bool>& constant = {});

/// The same for any number of outputs, and for dims of several labels if `places` has the axes.
std::vector<Layout> infer_outputs(const OpType& op, std::span<const Layout> operands,
                                  const std::vector<bool>& constant = {}, const AxisPlaces& places = {});

/// The rule on cuts: what one axis does to the outputs, given what it does to each operand. A label means a shard of it
/// where an output has it, and a partial sum where it has not. `placements` are for messages. Throws as infer.
Cut infer_cut(const LabelledOp& op, std::span<const Cut> cuts, std::span<const Operand> operands,
              std::string_view axis);

}  // namespace caravan

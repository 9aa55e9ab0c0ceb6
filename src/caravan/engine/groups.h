#pragma once

#include <vector>

#include "caravan/engine/strategy.h"
#include "caravan/redistribute/flat.h"

namespace caravan {

/// The parameters of a strategy by group: those that exactly the same units use. One group for each unit, in their
/// order (it may be empty); then one for each set of units that shares parameters.
struct Groups {
  Units units;
  std::vector<std::vector<Parameter*>> parameters;  ///< by group, in model order
};

/// Throws UsageError for a parameter that belongs to no unit, and for a unit that is not in the strategy's order.
Groups groups_of(const Strategy& strategy, const Mesh& mesh);

/// The parameters of a group cut into sets that take the same way between rest and leaf, in the order in which they lie
/// in the flat buffers: trained before frozen ones; within a set those that decay first, and those that forward uses
/// last first.
std::vector<std::vector<Parameter*>> by_way(const std::vector<Parameter*>& group, const Strategy& strategy,
                                            const Mesh& mesh);

/// The layouts of a parameter. Throws LayoutError if the strategy has none, or one that cannot be.
const ParameterLayouts& layouts_of(const Strategy& strategy, const Parameter& parameter);

/// `layout` on every axis of `mesh`: invariant on those that it does not place. One that is invariant on an axis that
/// `mesh` has factored is invariant on its parts.
Layout on_listed_axes(const Layout& layout, const Mesh& mesh);

/// The moves that fill the leaf from rest, and those that take the leaf's gradient to rest; without those that move
/// nothing. An axis of the leaf's layout that is part of one at rest ("pp{0,3}") stands for it.
std::vector<AxisMove> fill_moves(const ParameterLayouts& layouts, const Mesh& mesh);
std::vector<AxisMove> reduce_moves(const ParameterLayouts& layouts, const Mesh& mesh);

}  // namespace caravan

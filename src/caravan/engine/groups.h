#pragma once

#include <string>
#include <vector>

#include "caravan/engine/strategy.h"
#include "caravan/redistribute/flat.h"

namespace caravan {

/// The parameters of a strategy by group: those used by exactly the same units. One group for each unit, in order (it
/// may be empty), then one for each chunk of the strategy, then one for each set of units that shares parameters
/// outside of chunks.
struct Groups {
  Units units;
  std::vector<std::vector<Parameter*>> parameters;  ///< by group, in model order
};

/// Throws UsageError for a parameter that belongs to no unit, and for a unit that is not in the strategy's order.
Groups groups_of(const Strategy& strategy, const Mesh& mesh);

/// The parameters of a group divided into sets with the same moves between sharded and unsharded parameter, in the
/// order of the flat buffers: trained before frozen ones; within a set parameters with weight decay first, and those
/// that forward uses last first.
std::vector<std::vector<Parameter*>> by_way(const std::vector<Parameter*>& group, const Strategy& strategy,
                                            const Mesh& mesh);

/// Equal for parameters that may be moved together; sizes of shards may differ.
std::string way_of(const Parameter& parameter, const Strategy& strategy, const Mesh& mesh);

/// The layouts of a parameter. Throws LayoutError if the strategy has none, or an invalid one.
const ParameterLayouts& layouts_of(const Strategy& strategy, const Parameter& parameter);

/// `layout` on every axis of `mesh`, I on those that it does not place. A layout that is I on an axis that `mesh` has
/// factored is I on its parts.
Layout on_listed_axes(const Layout& layout, const Mesh& mesh);

/// The moves from sharded to unsharded parameter, and from unsharded to sharded gradient, without moves that are
/// no-ops. An unsharded axis that is part of a sharded one ("pp{0,3}") stands for it.
std::vector<AxisMove> fill_moves(const ParameterLayouts& layouts, const Mesh& mesh);
std::vector<AxisMove> reduce_moves(const ParameterLayouts& layouts, const Mesh& mesh);
/// Whether a gradient is reduced in its unsharded layout.
bool reduces_in_place(const ParameterLayouts& layouts, const Mesh& mesh);

}  // namespace caravan

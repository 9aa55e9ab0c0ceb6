#pragma once

#include <memory>
#include <string>
#include <vector>

#include "caravan/mesh/mesh.h"
#include "caravan/nn/row_reduction.h"

namespace caravan {

/// A RowReduction over the ranks of `axis`: blocking all-reduces. `to`: the layout of reduced summands (P) in a dry
/// run: R if the ranks use the sums in different ways (statistics of a norm), I if in the same way (a loss). `names`:
/// the axis in layouts, if it is made of several.
std::shared_ptr<RowReduction> axis_reduction(const MeshAxis& axis, const Placement& to,
                                             std::vector<std::string> names = {});

}  // namespace caravan

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "caravan/mesh/mesh.h"
#include "caravan/nn/row_reduction.h"

namespace caravan {

/// A RowReduction over the ranks of `axis`: blocking all-reduces, whose results every rank gets. `to`: what becomes of
/// summands (P) in a dry run: R where the ranks use the sums in different ways (statistics of a norm), I where they go
/// on alike (a loss). `names`: of the axis in layouts, where it is made of several.
std::shared_ptr<RowReduction> axis_reduction(const MeshAxis& axis, const Placement& to,
                                             std::vector<std::string> names = {});

}  // namespace caravan

#pragma once

#include <cstdint>
#include <optional>

#include "caravan/registry/registry.h"
#include "caravan/techniques/grid/grid.h"

namespace caravan {

// Common part of the entries of tensor parallelism over a grid.

/// The number of parts into which a grid of `ranks` ranks splits a model.
SplitParts parts_of_grid(const Grid& grid, int64_t ranks);

/// Why the grid cannot split that model.
std::optional<Misfit> misfit_of_grid(const Setting& kind, const Grid& grid, int64_t ranks, const ModelConfig& model);

}  // namespace caravan

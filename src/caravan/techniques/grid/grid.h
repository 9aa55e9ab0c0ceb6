#pragma once

#include <cstdint>
#include <optional>

#include "caravan/base/misfit.h"
#include "caravan/nn/config.h"

namespace caravan {

/// Ranks over which tensor parallelism splits layers: a square of q x q, `depth` squares, or a cube.
struct Grid {
  int64_t dims = 2;                ///< 3: a cube
  std::optional<int64_t> depth{};  ///< of squares, each with a part of the batch
};

/// The side q; 0 if `ranks` do not form such a grid.
int64_t grid_side(const Grid& grid, int64_t ranks);
/// The factor of the widths of model and MLP: q, for a cube q^2. And the factor of the sequences of a micro-batch: q, q
/// x depth, q^2.
int64_t width_parts(const Grid& grid, int64_t side);
int64_t row_parts(const Grid& grid, int64_t side);

/// Why `ranks` ranks do not form such a grid: "6 ranks are not a square", "use 4 or 9".
std::optional<Misfit> misfit_of_ranks(const Grid& grid, int64_t ranks);

/// Why the layers of a model cannot be split over a grid of side q, which must divide heads and kv heads, as
/// width_parts must divide the widths.
std::optional<Misfit> misfit_of_grid(const Grid& grid, const ModelConfig& config, int64_t side);

}  // namespace caravan

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

/// Its side q; 0 if `ranks` are no such grid.
int64_t grid_side(const Grid& grid, int64_t ranks);
/// The widths of model and MLP are a multiple of this: q, of a cube q^2. And the sequences of a micro-batch: q, q x
/// depth, q^2.
int64_t width_parts(const Grid& grid, int64_t side);
int64_t row_parts(const Grid& grid, int64_t side);

/// Why `ranks` ranks are not such a grid: "6 ranks are not a square", "use 4 or 9".
std::optional<Misfit> misfit_of_ranks(const Grid& grid, int64_t ranks);

/// Why the layers of a model cannot be split over a grid of side q: it divides heads and kv heads, and width_parts the
/// widths.
std::optional<Misfit> misfit_of_grid(const Grid& grid, const ModelConfig& config, int64_t side);

}  // namespace caravan

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "caravan/base/misfit.h"
#include "caravan/nn/config.h"

namespace caravan {

/// The side q of the grid of ranks of a kind of tensor parallelism: "2d" q x q, "2.5d" depth x q x q, "3d" q x q x q.
/// 0 if `ranks` are no such grid.
int64_t grid_side(std::string_view kind, int64_t ranks, int64_t depth = 1);

/// Why `ranks` ranks are not a grid of this kind: "6 ranks are not a square", "use 4 or 9".
std::optional<Misfit> misfit_of_ranks(std::string_view kind, int64_t ranks, int64_t depth = 1);

/// Why the layers of a model cannot be split over a grid of side q: heads and kv heads are divided by q, the widths of
/// the model and of the MLP by q (3d: by q^2).
std::optional<Misfit> misfit_of_grid(std::string_view kind, const ModelConfig& config, int64_t side);

/// Why a micro-batch cannot have `rows` sequences: 2d q, 2.5d q depth, 3d q^2 divide them.
std::optional<Misfit> misfit_of_rows(std::string_view kind, int64_t rows, int64_t side, int64_t depth = 1);

}  // namespace caravan

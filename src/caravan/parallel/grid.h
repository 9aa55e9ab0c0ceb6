#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "caravan/nn/config.h"

namespace caravan {

/// The side q of the grid of ranks of a kind of tensor parallelism: "2d" q x q, "2.5d" depth x q x q, "3d" q x q x q.
/// 0 if `ranks` are no such grid.
int64_t grid_side(std::string_view kind, int64_t ranks, int64_t depth = 1);

/// What is wrong with `ranks` ranks as a grid of this kind, and which are right; "" if nothing: "6 ranks are not a
/// square: use 4 or 9".
std::string wrong_with_ranks(std::string_view kind, int64_t ranks, int64_t depth = 1);

/// What is wrong with splitting the layers of a model over a grid of side q, and which sides are right: heads and kv
/// heads are divided by q, the widths of the model and of the MLP by q (3d: by q^2); "" if nothing.
std::string wrong_with_grid(std::string_view kind, const ModelConfig& config, int64_t side);

/// What is wrong with `rows` sequences of a micro-batch: 2d q, 2.5d q depth, 3d q^2 divide them; "" if nothing.
std::string wrong_with_rows(std::string_view kind, int64_t rows, int64_t side, int64_t depth = 1);

}  // namespace caravan

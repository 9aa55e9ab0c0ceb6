#pragma once

#include <cstdint>

#include "caravan/nn/attention/tiles/softmax_tiles.h"

/// Scores that are not products times a scale: on the tiles of softmax_tiles.h, before their softmax.
namespace caravan::kernels {

/// How scores are made of products, if not by the scale alone: cap tanh(scale s / cap) + bias.
struct TileScores {
  float scale = 1;
  float cap = 0;                ///< 0: none
  const float* bias = nullptr;  ///< of key k and query i of the tile: bias[k * bias_step + i]; null: none
  int64_t bias_step = 0;
};

/// The scores of a piece, in place; their scale is 1 from then on. `slopes` (or null): the derivatives of the caps,
/// [keys][kTileQueries].
void make_scores(float* s, const TilePiece& piece, const TileScores& scores, float* slopes);

/// sums[i - k + kTileKeys - 1] += x[k][i] of a piece: of each diagonal.
void add_diagonals(const float* x, const TilePiece& piece, float* sums);

}  // namespace caravan::kernels

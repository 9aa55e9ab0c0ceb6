#pragma once

#include <memory>

#include "caravan/nn/loss/preference_loss.h"
#include "caravan/nn/row_reduction.h"
#include "caravan/nn/tiles.h"

namespace caravan {

/// The loss of CrossEntropy with the rows of the weight in tiles: forward keeps the statistics of each token, backward
/// computes the logits of a tile again. No more logits exist at a time than without tiles; the products of the head are
/// 4 instead of 3.
///
///   grad    of hidden is a sum over tiles in fp32 (fp64 for fp64), rounded once. Any incoming gradient
struct TiledLoss {
  double scale = 1;
  double logits_cap = 0;
  int64_t vocabulary = 0;  ///< global
  std::shared_ptr<RowReduction> reduction{};
  int64_t first_row = 0;                               ///< of the vocabulary, the first that this rank has
  std::shared_ptr<const PreferencePass> preference{};  ///< as in ForwardContext
};
at::Tensor tiled_cross_entropy(const at::Tensor& hidden, const at::Tensor& labels, const Tiles& tiles,
                               const TiledLoss& options, const ForwardContext& context);

}  // namespace caravan

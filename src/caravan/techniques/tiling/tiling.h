#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "caravan/engine/strategy.h"

namespace caravan {

struct TilingOptions {
  int64_t tiles = 4;                      ///< of each weight; fewer if it has fewer rows
  std::vector<std::string> modules{"*"};  ///< layers, by pattern (* stands for any characters)
};

/// Cuts the weights of layers into tiles of rows of about equal size, which become units: each is gathered before its
/// use, freed after it and reduced on its own, so that no rank ever has a whole weight unsharded. (Rajbhandari et al.,
/// "ZeRO-Infinity", SC 2021, memory-centric tiling, arXiv 2104.07857.)
///
///   layers    Linear, the embedding of tokens, the head with its loss, and experts, whose tiles are whole experts.
///             Tied embeddings have the same tiles: a pattern for one of the two cuts both. Adapters stay whole
///   layouts   those of the weight: a rank of tensor parallelism cuts the rows that it computes with
///   results   outputs and gradients of weights are computed by the same products of fewer rows; the gradient of an
///             input is a sum over tiles, from the last to the first, in fp32
///   memory    unsharded: two or three tiles (this one, the next, and one whose gradient is being reduced) instead of
///             as many layers; with data parallelism that gathers
///   sends     the same bytes in more messages
///   time      the products of a head with its loss are 4 instead of 3; smaller products are slower
///
/// Checkpoints do not depend on it: a tile is a piece of the weight. Called on every rank with the same options, after
/// a plan is applied and stages are added, before data axes, and before the model has memory.
///
/// Throws UsageError for a pattern that fits no such layer, naming the nearest, for layers that are split by rows and
/// columns, and for a model that has memory.
void add_tiling(Strategy& strategy, Module& model, const Mesh& mesh, const TilingOptions& options = {});

}  // namespace caravan

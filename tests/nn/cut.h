#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "caravan/nn/tiles.h"

namespace caravan::testing {

/// Cuts all weights of a layer on one rank into tiles of so many units.
inline void cut_into(Tileable& layer, const std::vector<int64_t>& sizes) {
  std::vector<std::vector<TileCut>> cuts(sizes.size());
  for (const Tileable::Weight& weight : layer.weights_to_cut()) {
    int64_t begin = 0;
    for (size_t t = 0; t < sizes.size(); ++t) {
      const int64_t rows = sizes[t] * weight.row_unit;
      TileCut one{.spec = weight.parameter->spec(),
                  .whole = {weight.parameter->name(), weight.parameter->global_shape(), {{begin, rows}}},
                  .first = begin,
                  .count = rows};
      one.spec.shape.front() = rows;
      cuts[t].push_back(std::move(one));
      begin += rows;
    }
  }
  layer.cut(cuts, /*follows_trained=*/false);
}

}  // namespace caravan::testing

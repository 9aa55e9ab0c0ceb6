#pragma once

#include <cstdint>
#include <vector>

#include "caravan/engine/strategy.h"
#include "caravan/nn/tiles.h"

namespace caravan {

/// A weight of which a grid of ranks multiplies blocks.
[[noreturn]] void refuse_grid(const Parameter& weight);

/// How the rows of one weight become tiles. Each part of them that a rank computes with is cut, so tile t consists of
/// the t-th piece of each part: its layout is that of the weight.
class RowsOfTiles {
 public:
  /// Throws UsageError, naming the weight, if no layout of a tile would follow.
  RowsOfTiles(const Parameter& weight, const ParameterLayouts& layouts, const Mesh& mesh, int64_t row_unit);

  /// So that none is empty, on any rank.
  int64_t most_tiles() const noexcept;
  TileCut cut(int64_t tile, int64_t count) const;
  ParameterLayouts layouts(int64_t tile, int64_t count) const;

 private:
  TileOf::Part piece(const TileOf::Part& part, int64_t tile, int64_t count) const;
  Layout layout(const Layout& whole, int64_t tile, int64_t count) const;

  const Parameter& weight_;
  ParameterLayouts layouts_;
  int64_t row_unit_;
  std::vector<TileOf::Part> parts_;
  size_t own_ = 0;  ///< the part of this rank
};

}  // namespace caravan

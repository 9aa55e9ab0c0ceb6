#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/ScalarType.h>

#include "caravan/mesh/layout.h"

namespace caravan {

/// A tensor that an op takes, as the solver sees it.
struct GlobalOperand {
  std::vector<int64_t> sizes;  ///< of the global tensor
  const Layout* layout;        ///< on every axis of the mesh; R, S and P only
  int64_t piece_bytes = 0;
  int argument = 0;         ///< of the schema
  int element = -1;         ///< in a list of tensors
  bool is_plain = false;    ///< not a global tensor: taken as equal on all ranks
  bool is_written = false;  ///< by an in-place op: keeps its layout
  bool may_move = false;    ///< written, but nothing else sees its piece: a part or a summand of it may take its place
  bool is_parameter = false;  ///< gives way to activations
  bool is_floating = true;
  at::ScalarType dtype = at::kFloat;

  /// Whether an axis shards this dim.
  bool is_cut(size_t dim) const {
    for (const auto& [axis, placement] : layout->entries()) {
      if (placement.is_shard(static_cast<int>(dim))) return true;
    }
    return false;
  }
};

}  // namespace caravan

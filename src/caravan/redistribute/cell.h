#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "caravan/comm/types.h"
#include "caravan/mesh/layout.h"

namespace caravan {

/// One cell of the table on one axis, its sizes made plain.
struct Cell {
  Placement from;
  Placement to;
  std::vector<int64_t> from_rows;  ///< of each coordinate, before; empty if `from` is no shard
  std::vector<int64_t> to_rows;    ///< of each coordinate, after; empty if `to` is no shard

  /// True if every rank's data stays as it is; the gradient may still have something to do.
  bool is_same_data() const {
    return (from.is_whole() && to.is_whole()) || (from.is_partial() && to.is_partial()) ||
           (from.is_shard() && to.is_shard(from.dim()) && from_rows == to_rows);
  }
  /// The cell that the gradient takes: the law.
  Cell backward() const { return {dual(to), dual(from), to_rows, from_rows}; }
};

/// Who asks, for the messages of what is refused. Cheap to make: texts are built when something is refused.
struct Asker {
  const char* op;
  std::span<const int64_t> shape;
  const MeshAxis& axis;
  const Layout* layout;  ///< nullptr: unknown
  const Call* call;      ///< nullptr: unknown

  std::string subject() const;
  std::string where() const;
};

/// Refuses a dim that a tensor of `num_dims` has not.
void check_dim(const Placement& placement, size_t num_dims, const Asker& asker);

/// The cell from -> to for a piece of asker.shape. Throws ShapeError if the sizes do not fit.
Cell make_cell(const Placement& from, const Placement& to, const Asker& asker);

/// Shape of the piece of coordinate `coord`, after the cell.
std::vector<int64_t> shape_after(const Cell& cell, std::span<const int64_t> shape, int coord);

/// Rows of S -> S: how many of dim to.dim() coordinate `coord` sends to each coordinate, and how many of dim from.dim()
/// it receives from each.
struct Exchange {
  std::vector<int64_t> send;
  std::vector<int64_t> receive;
};
Exchange exchange_of(const Cell& cell, int coord);

int64_t sum_of(std::span<const int64_t> rows);

}  // namespace caravan

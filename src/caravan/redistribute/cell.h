#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "caravan/comm/types.h"
#include "caravan/mesh/layout.h"

namespace caravan {

/// One cell of the table for one axis, with explicit sizes.
struct Cell {
  Placement from;
  Placement to;
  std::vector<int64_t> from_rows;  ///< of each coordinate, before; empty unless `from` is a shard
  std::vector<int64_t> to_rows;    ///< of each coordinate, after; empty unless `to` is a shard

  /// Whether no rank's data changes. The backward may still have to move data.
  bool is_same_data() const {
    return (from.is_whole() && to.is_whole()) || (from.is_partial() && to.is_partial()) ||
           (is_recut() && from_rows == to_rows && from.blocks() == to.blocks());
  }
  /// Whether it goes from one shard of a dim to another shard of the same dim.
  bool is_recut() const { return from.is_shard() && to.is_shard(from.dim()); }
  /// The cell of the gradient, by the law.
  Cell backward() const { return {dual(to), dual(from), to_rows, from_rows}; }
};

/// The call that is being checked, for error messages. Cheap to make: texts are built only when something is wrong.
struct CallSite {
  const char* op;
  std::span<const int64_t> shape;
  const MeshAxis& axis;
  const Layout* layout;  ///< nullptr: unknown
  const Call* call;      ///< nullptr: unknown

  std::string subject() const;
  std::string where() const;
};

/// Throws LayoutError if `placement` shards a dim that a tensor of `num_dims` does not have.
void check_dim(const Placement& placement, size_t num_dims, const CallSite& site);

/// The cell from -> to for a local piece of shape site.shape. Throws ShapeError if the sizes do not fit.
Cell make_cell(const Placement& from, const Placement& to, const CallSite& site);

/// Shape of the piece that coordinate `coord` holds afterwards.
std::vector<int64_t> shape_after(const Cell& cell, std::span<const int64_t> shape, int coord);

/// For S -> S: how many rows of dim to.dim() coordinate `coord` sends to each coordinate, and how many rows of dim
/// from.dim() it receives from each. If the dim is the same, also which rows of the piece these are, by coordinate;
/// both sides have them in the order of the whole dim.
struct Exchange {
  std::vector<int64_t> send;
  std::vector<int64_t> receive;
  std::vector<std::vector<RowRun>> sent_runs{};
  std::vector<std::vector<RowRun>> received_runs{};
};
Exchange exchange_of(const Cell& cell, int coord);

int64_t sum_of(std::span<const int64_t> rows);

}  // namespace caravan

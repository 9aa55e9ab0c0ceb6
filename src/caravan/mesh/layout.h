#pragma once

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "caravan/mesh/mesh.h"
#include "caravan/mesh/placement.h"

namespace caravan {

/// How a tensor is laid out: a placement for each axis of the mesh, in order. If two axes shard one dim, the earlier
/// one is the major axis and splits the dim first. Only the minor axis may stop sharding a dim, and an axis that starts
/// to shard a dim becomes its minor axis. On a mesh with derived axes (Mesh::factor, join, part), a layout names either
/// an axis or the axes that it is made of, never both: local_box and global_shape refuse that.
class Layout {
 public:
  using Entry = std::pair<std::string, Placement>;

  Layout() = default;
  /// Throws LayoutError if an axis is named twice.
  Layout(std::initializer_list<Entry> entries);
  explicit Layout(std::vector<Entry> entries);
  /// `placement` on every axis of `mesh`.
  static Layout all(const Mesh& mesh, const Placement& placement);

  /// The placement on `axis`. Throws LayoutError if the layout does not name the axis.
  const Placement& operator[](std::string_view axis) const;
  bool has(std::string_view axis) const noexcept;
  const std::vector<Entry>& entries() const noexcept { return entries_; }
  bool empty() const noexcept { return entries_.empty(); }

  /// The axes that shard `dim`, major first.
  std::vector<std::string> sharding(int dim) const;
  /// This layout after a redistribution that places `axis` as `to`, as the minor axis if it shards. Unchanged if the
  /// placement is the same. Throws LayoutError if the layout does not name the axis.
  Layout moved(std::string_view axis, const Placement& to) const;
  /// This layout plus `placement` on those of mesh.axes() that it does not name, either directly or as part of another
  /// axis.
  Layout completed(const Mesh& mesh, const Placement& placement) const;
  /// The layout of the gradient.
  Layout dual() const;

  /// "dp=I tp=S(0)".
  std::string to_string() const;
  /// True if both mean the same: the same placement on each axis, and the same order among axes that share a dim. The
  /// order of other axes does not matter.
  bool operator==(const Layout& other) const noexcept;

 private:
  std::vector<Entry> entries_;
};

/// to_string().
std::ostream& operator<<(std::ostream& stream, const Layout& layout);

/// A part of a global tensor: the piece that one rank holds, or one of several that it is made of.
struct Box {
  std::vector<int64_t> offset;  ///< per dim: global index of its first element
  std::vector<int64_t> size;    ///< per dim
  int64_t num_elements() const noexcept;
  bool operator==(const Box&) const noexcept = default;
};

/// The piece of a tensor of `global_shape` that this rank of `mesh` holds. On R, I and P axes, and on axes that the
/// layout does not name, every rank holds everything. Throws ShapeError naming `what` if a dim does not divide on any
/// coordinate, so all ranks throw together, and LayoutError if a shard names a dim that does not exist, or if two axes
/// of the layout share an axis that they are made of. On every rank throws LayoutError too if a blocked shard cuts the
/// tensor, since the piece is then several boxes.
Box local_box(const std::vector<int64_t>& global_shape, const Layout& layout, const Mesh& mesh,
              std::string_view what = {});

/// One box of a piece.
struct PieceBox {
  Box global;
  std::vector<int64_t> local_offset;  ///< of its first element in the local piece
  bool operator==(const PieceBox&) const noexcept = default;
};

/// The boxes that the piece of this rank consists of, in the order of its rows, major dims first: one, unless a shard
/// is blocked. They fill the piece; a piece without elements is one box. Throws as local_box, but takes any shard.
std::vector<PieceBox> local_boxes(const std::vector<int64_t>& global_shape, const Layout& layout, const Mesh& mesh,
                                  std::string_view what = {});

/// The rows of each dim that this rank holds, as few runs in their local order; at least one. Throws as local_boxes.
std::vector<std::vector<RowRun>> local_rows(const std::vector<int64_t>& global_shape, const Layout& layout,
                                            const Mesh& mesh, std::string_view what = {});

/// The shape of this rank's piece. Throws as local_boxes.
std::vector<int64_t> local_shape(const std::vector<int64_t>& global_shape, const Layout& layout, const Mesh& mesh,
                                 std::string_view what = {});

/// The shape of the global tensor of which this rank holds `local_shape`: the inverse of local_shape. Throws ShapeError
/// naming `what` if the piece does not have the number of rows of its coordinate, or if another coordinate owns all
/// rows and the placement does not say how many.
std::vector<int64_t> global_shape(const std::vector<int64_t>& local_shape, const Layout& layout, const Mesh& mesh,
                                  std::string_view what = {});

}  // namespace caravan

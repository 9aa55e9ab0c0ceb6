#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "caravan/mesh/mesh.h"
#include "caravan/mesh/placement.h"

namespace caravan {

/// Where one tensor lies: each axis of the mesh -> a placement, in order. Of two axes that shard one dim the earlier is
/// the major one: the dim is cut by it first. An axis leaves a dim only while it is its minor axis, and arrives as the
/// minor one.
class Layout {
 public:
  using Entry = std::pair<std::string, Placement>;

  Layout() = default;
  /// Throws LayoutError if an axis is named twice.
  Layout(std::initializer_list<Entry> entries);
  explicit Layout(std::vector<Entry> entries);
  /// Every axis of `mesh` with `placement`.
  static Layout all(const Mesh& mesh, const Placement& placement);

  /// The placement on `axis`. Throws LayoutError if the layout does not say.
  const Placement& operator[](std::string_view axis) const;
  bool has(std::string_view axis) const noexcept;
  const std::vector<Entry>& entries() const noexcept { return entries_; }
  bool empty() const noexcept { return entries_.empty(); }

  /// The axes that shard `dim`, major first.
  std::vector<std::string> sharding(int dim) const;
  /// This layout after a redistribution: `axis` placed `to`, as the minor axis if it shards. Same placement: the same
  /// layout.
  Layout moved(std::string_view axis, const Placement& to) const;
  /// This layout with the axes it does not name added, placed `placement`.
  Layout completed(const Mesh& mesh, const Placement& placement) const;
  /// The layout of the gradient.
  Layout dual() const;

  /// "dp=I tp=S(0)".
  std::string to_string() const;
  bool operator==(const Layout&) const noexcept = default;

 private:
  std::vector<Entry> entries_;
};

/// The piece of a global tensor that one rank holds.
struct Box {
  std::vector<int64_t> offset;  ///< per dim, of its first element
  std::vector<int64_t> size;    ///< per dim
  int64_t num_elements() const noexcept;
  bool operator==(const Box&) const noexcept = default;
};

/// What this rank of `mesh` holds of a tensor of `global_shape`; on R, I and P axes every rank holds the whole.
/// Throws ShapeError naming `what` if a dim does not divide, LayoutError if a shard names a dim that is not there.
Box local_box(const std::vector<int64_t>& global_shape, const Layout& layout, const Mesh& mesh,
              std::string_view what = {});

/// The shape of the global tensor, of which this rank holds `local_shape`. The inverse of local_box for layouts whose
/// shards are even or carry sizes; with an owner, the local shape of a coordinate without rows says nothing: ShapeError
/// there.
std::vector<int64_t> global_shape(const std::vector<int64_t>& local_shape, const Layout& layout, const Mesh& mesh,
                                  std::string_view what = {});

}  // namespace caravan

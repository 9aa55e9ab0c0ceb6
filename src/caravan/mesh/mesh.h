#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/comm/communicator.h"
#include "caravan/mesh/deferred_work.h"

namespace caravan {

struct AxisSize {
  std::string name;
  int size = 1;
};

/// "dp=2 tp=4"; "none".
std::string to_string(const std::vector<AxisSize>& axes);

/// The axes of recipes in their order, the slowest first: pp, dp, ep, cp, tp.
std::vector<AxisSize> ordered_axes(int dp, int pp, int ep, int cp, int tp);
/// Without those of size 1, except dp, which each mesh of a model has.
std::vector<AxisSize> used_axes(std::vector<AxisSize> axes);

class Mesh;

/// One named axis of a mesh as seen from this rank: the ranks that differ from it only in this coordinate. Cheap to
/// copy.
class MeshAxis {
 public:
  const std::string& name() const noexcept;
  int size() const noexcept;
  /// This rank's coordinate: 0 .. size()-1.
  int coord() const noexcept;
  /// The communicator of the axis; its rank is coord(). On an axis of size 1 it has one rank and its verbs are no-ops.
  Communicator& comm() const noexcept;
  /// Mesh::where of the mesh in which it was created.
  const std::string& where() const noexcept;
  /// For a sub-axis (Mesh::part), the name of the axis that it is part of; "" for all other axes.
  const std::string& parent() const noexcept;
  /// The coordinate on parent() of coordinate `coord` of this axis; `coord` itself for an axis without a parent. Throws
  /// UsageError if `coord` is not from 0 to size()-1.
  int parent_coord(int coord) const;
  /// Mesh::deferred of its mesh.
  DeferredWork& deferred() const noexcept;
  bool operator==(const MeshAxis& other) const noexcept;

 private:
  friend class Mesh;
  struct State;
  std::shared_ptr<const State> state_;
};

/// Named axes over the ranks of a world; the last axis varies fastest. With axes a and b, rank = coord(a) * size(b) +
/// coord(b). Cheap to copy.
///
/// factor, join and part derive a mesh that knows more axes of the same ranks. They are collective: every rank of the
/// world calls them in the same order with the same arguments. They throw UsageError on every rank, before anything is
/// sent, for an axis that does not exist (listing those that do), and for a name that is missing or in use. The axes of
/// the first mesh stay the same objects, with the same communicators.
class Mesh {
 public:
  /// Collective: every rank of `world` calls it with the same axes. Splits off one communicator per axis. Throws
  /// UsageError if the sizes do not multiply to world->size(), naming sizes that do, if a name is missing or used
  /// twice, or if a size is below 1.
  static Mesh create(std::shared_ptr<Communicator> world, std::vector<AxisSize> axes);

  /// Splits an axis into several, the slowest first: dp=6 into replicate=2 and shard=3 gives the rank at dp=4
  /// replicate=1 and shard=1. axes() lists the parts in place of `axis`, which operator[] still finds, so that a layout
  /// may name either, but not both an axis and a part of it. Splits off one communicator per part. Throws UsageError if
  /// axes() does not list `axis`, or if the sizes do not multiply to its size, naming sizes that do.
  Mesh factor(std::string_view axis, std::vector<AxisSize> parts) const;

  /// Adds one axis made of several, the slowest first: the ranks that differ only in these coordinates, such as dp and
  /// cp for the reduction of a gradient. operator[] finds it, axes() does not list it. Splits off one communicator.
  /// Throws UsageError if two of `axes` share a coordinate (dp and a part of dp), or if one is a sub-axis.
  Mesh join(std::string_view name, std::vector<std::string> axes) const;

  /// Adds the sub-axis of the ranks of `axis` that have these coordinates on it; 0 and 3 of pp are the sub-axis
  /// "pp{0,3}". Its own coordinate is the index in `coords`. operator[] finds it on these ranks only, axes() does not
  /// list it. Splits off one communicator. Returns this mesh if it has that sub-axis already. Throws UsageError unless
  /// `coords` are coordinates of `axis` in increasing order, at least one, or if `axis` is itself a sub-axis.
  Mesh part(std::string_view axis, std::vector<int> coords) const;

  /// Throws UsageError if the mesh has no axis of this name, listing its axes, or if it is a sub-axis that this rank is
  /// not on, naming its coordinates.
  const MeshAxis& operator[](std::string_view name) const;
  /// Whether operator[] finds the axis on this rank.
  bool has(std::string_view name) const noexcept;
  /// The axes that span the mesh: each rank has its own combination of their coordinates.
  const std::vector<MeshAxis>& axes() const noexcept;
  /// The axes of axes() whose coordinates determine the coordinate on axis `name`, the slowest first: a listed axis
  /// itself, or the parts of a factored axis. Two axes that share one of them must not be in one layout. Finds sub-axes
  /// on every rank. Throws UsageError if the mesh has no such axis.
  const std::vector<std::string>& made_of(std::string_view name) const;
  /// The axis that is made of exactly these listed axes, in this order (for a single axis: itself); null if the mesh
  /// has none.
  const MeshAxis* joined(const std::vector<std::string>& axes) const noexcept;
  /// Names of all axes, including derived axes and sub-axes.
  std::vector<std::string> names() const;
  Communicator& world() const noexcept;
  int rank() const noexcept;
  int size() const noexcept;

  /// "rank 5 of 12 (dp=1 tp=2)": the `where` of errors.
  const std::string& where() const noexcept;
  /// Bytes that this rank has sent on its world and on the axes of this mesh, of its parent mesh, and of all other
  /// meshes derived from that parent.
  int64_t bytes_sent() const noexcept;
  double wait_ms() const noexcept;  ///< on the same communicators
  /// Work that this rank has deferred. Shared by the same meshes.
  DeferredWork& deferred() const noexcept;

 private:
  struct Family;
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace caravan

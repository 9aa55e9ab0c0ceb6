#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/comm/communicator.h"

namespace caravan {

struct AxisSize {
  std::string name;
  int size = 1;
};

class Mesh;

/// One named axis of a mesh, seen from this rank: the ranks that differ from it only in this coordinate. Cheap to copy.
class MeshAxis {
 public:
  const std::string& name() const noexcept;
  int size() const noexcept;
  /// This rank's coordinate: 0 .. size()-1.
  int coord() const noexcept;
  /// The communicator of the axis; its rank is coord(). On an axis of size 1 it has one rank and its verbs are no-ops.
  Communicator& comm() const noexcept;
  /// Mesh::where of its mesh.
  const std::string& where() const noexcept;
  bool operator==(const MeshAxis& other) const noexcept;

 private:
  friend class Mesh;
  struct State;
  std::shared_ptr<const State> state_;
};

/// Named axes over the ranks of a world; the last axis varies fastest. With axes a and b, rank = coord(a) * size(b) +
/// coord(b). Cheap to copy.
class Mesh {
 public:
  /// Collective: every rank of `world` calls it with the same axes. Splits off one communicator per axis. Throws
  /// UsageError if the sizes do not multiply to world->size(), naming sizes that do, if a name is missing or used
  /// twice, or if a size is below 1.
  static Mesh create(std::shared_ptr<Communicator> world, std::vector<AxisSize> axes);

  /// Throws UsageError that lists the mesh's axes if there is none of this name.
  const MeshAxis& operator[](std::string_view name) const;
  bool has(std::string_view name) const noexcept;
  const std::vector<MeshAxis>& axes() const noexcept;
  Communicator& world() const noexcept;
  int rank() const noexcept;
  int size() const noexcept;

  /// "rank 5 of 12 (dp=1 tp=2)": the `where` of errors.
  const std::string& where() const noexcept;
  /// Bytes this rank has sent on its axes and its world.
  int64_t bytes_sent() const noexcept;
  double wait_ms() const noexcept;  ///< on the same communicators

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace caravan

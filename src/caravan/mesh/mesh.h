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

/// One named axis of a mesh, seen from this rank: the ranks that differ from it in this coordinate only. A cheap
/// handle.
class MeshAxis {
 public:
  const std::string& name() const noexcept;
  int size() const noexcept;
  /// This rank's coordinate: 0 .. size()-1.
  int coord() const noexcept;
  /// The communicator of the axis; its rank is coord(). Of an axis of size 1: a world of one, whose verbs move nothing.
  Communicator& comm() const noexcept;
  bool operator==(const MeshAxis& other) const noexcept;

 private:
  friend class Mesh;
  struct State;
  std::shared_ptr<const State> state_;
};

/// Named axes over the ranks of a world, the last axis fastest: rank = (.. * size(b) + coord(b)) .. A cheap handle.
class Mesh {
 public:
  /// Every rank of `world` calls it with the same axes. Splits one communicator per axis.
  /// Throws UsageError if the sizes do not multiply to world->size() (the valid sizes are named), an axis has no or
  /// another's name, or a size below 1.
  static Mesh create(std::shared_ptr<Communicator> world, std::vector<AxisSize> axes);

  /// Throws UsageError naming the axes there are.
  const MeshAxis& operator[](std::string_view name) const;
  bool has(std::string_view name) const noexcept;
  const std::vector<MeshAxis>& axes() const noexcept;
  Communicator& world() const noexcept;
  int rank() const noexcept;
  int size() const noexcept;

  /// "rank 5 of 12 (dp=1 tp=2)": the `where` of errors.
  std::string where() const;
  /// Bytes this rank has sent on its axes and its world.
  int64_t bytes_sent() const noexcept;
  double wait_ms() const noexcept;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace caravan

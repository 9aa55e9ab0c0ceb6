#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/mesh/mesh.h"

namespace caravan {

struct MeshAxis::State {
  std::string name;
  int size;
  int coord;
  std::shared_ptr<Communicator> comm;
  std::string where;
  std::shared_ptr<DeferredWork> deferred;
  std::string parent{};
  std::vector<int> parent_coords{};
};

/// State shared by all meshes that are derived from one.
struct Mesh::Family {
  std::shared_ptr<Communicator> world;
  std::vector<std::shared_ptr<Communicator>> axis_comms{};  ///< each once
  std::shared_ptr<DeferredWork> deferred = std::make_shared<DeferredWork>();
};

struct Mesh::State {
  /// An axis of the mesh. Axes are known by name on every rank, whether or not the rank is on them.
  struct Known {
    std::string name;
    std::vector<std::string> made_of;  ///< see Mesh::made_of
    std::optional<MeshAxis> axis;      ///< none on a rank that is not on a sub-axis
    std::string parent{};              ///< of a sub-axis
  };

  std::shared_ptr<Family> family;
  std::vector<AxisSize> sizes;  ///< of the listed axes
  std::string where;            ///< of this rank, by the listed axes
  std::vector<MeshAxis> listed;
  std::vector<Known> known;  ///< the listed axes and all others

  /// Sets `sizes` and `where`.
  void set_sizes(std::vector<AxisSize> axes);
  const Known* find(std::string_view name) const noexcept;
  /// Throws UsageError if there is no such axis.
  const Known& at(std::string_view name) const;
  std::vector<std::string> names() const;
  /// The ranks of the world that differ from this one only in these listed axes, the slowest first.
  std::vector<int> ranks_along(const std::vector<std::string>& axes) const;
  /// Collective: the axis of `members`, ranks of the world including this one, on a new communicator.
  MeshAxis split_off(std::string name, const std::vector<int>& members, std::string parent = {},
                     std::vector<int> parent_coords = {}) const;
};

/// Throws UsageError about `subject` at `where` for an axis without a name or a size, and for a repeated name.
void check_axes(const std::vector<AxisSize>& axes, const std::string& subject, const std::string& where);

/// The product of the sizes; if it overflows, a number larger than any world size.
int64_t product_of(const std::vector<AxisSize>& axes);

/// How to change sizes with this product to make it `wanted`: by one axis, "make dp 4, or tp 2", if that is possible.
std::string how_to_fill(const std::vector<AxisSize>& axes, int64_t product, int wanted);

}  // namespace caravan

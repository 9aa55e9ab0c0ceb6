#pragma once

#include <optional>
#include <string>
#include <vector>

#include "caravan/mesh/mesh.h"

namespace caravan {

/// The ranks that update the same matrices together: those of a pipeline stage. Numbered 0, 1, .. by their coordinates
/// on the axes that they span, the slowest first.
class MatrixRanks {
 public:
  /// All ranks of `mesh` that share this rank's coordinates on the axes `apart`. Every rank of the mesh calls it.
  /// Splits off a communicator unless the ranks are those of one axis or of the mesh.
  MatrixRanks(const Mesh& mesh, const std::vector<std::string>& apart);

  int size() const noexcept { return size_; }
  int rank() const noexcept { return rank_; }
  /// Of size() ranks. A rank that is alone has none: the mesh's world stands for it, and nothing is to be sent.
  Communicator& comm() const noexcept;
  const Mesh& mesh() const noexcept { return mesh_; }
  /// Whether these ranks differ on any axis of the mesh.
  bool spans(const std::string& axis) const;
  /// The coordinate of rank `rank` of these on any axis of the mesh.
  int coord(int rank, const std::string& axis) const;

 private:
  Mesh mesh_;
  std::vector<MeshAxis> axes_;     ///< that these ranks span
  std::optional<MeshAxis> joint_;  ///< of these ranks; none: they are all of the mesh
  int size_ = 1;
  int rank_ = 0;
};

}  // namespace caravan

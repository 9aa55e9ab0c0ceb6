#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/mesh/layout.h"

namespace caravan {

/// first, first + 1, ..: int64 [count]. Torch's arange on the meta device takes memory that no allocator sees.
at::Tensor counted_up(int64_t first, int64_t count, at::Device device);

/// The global elements of a dim that a local tensor has, in its order: runs of consecutive global indices. Random
/// numbers depend on these indices, so layouts do not change them.
class DimIndex {
 public:
  struct Run {
    int64_t first = 0;  ///< global index
    int64_t count = 0;
    bool operator==(const Run&) const noexcept = default;
  };

  /// The whole dim, whatever its size.
  DimIndex() = default;
  /// Elements [first, first + count) of `global`.
  DimIndex(int64_t first, int64_t count, int64_t global);
  /// Throws ShapeError for a run outside [0, global).
  DimIndex(std::vector<Run> runs, int64_t global);
  /// From an int64 tensor with the global index of each local element: tokens after their dispatch to experts.
  static DimIndex of(const at::Tensor& indices, int64_t global);
  /// The elements of dim `dim` that this rank holds of a global tensor laid out as `layout`.
  static DimIndex of(const std::vector<int64_t>& global_shape, int dim, const Layout& layout, const Mesh& mesh);

  bool is_whole() const noexcept { return global_ < 0; }
  /// Global size of a dim that is `local` here. Throws ShapeError if the index does not have `local` elements, so that
  /// it does not describe the tensor.
  int64_t global(int64_t local) const;
  /// Throws as global().
  std::vector<Run> runs(int64_t local) const;
  /// Elements [begin, begin + count) of this index, for a dim that is `local` here.
  DimIndex slice(int64_t begin, int64_t count, int64_t local) const;
  /// The same for several runs of elements, one after another.
  DimIndex slices(std::span<const RowRun> pieces, int64_t local) const;

  /// The global index of each local element, int64 on the CPU: the inverse of of(indices, global). Throws as global().
  at::Tensor indices(int64_t local) const;

  bool operator==(const DimIndex&) const noexcept = default;

 private:
  std::vector<Run> runs_;
  int64_t global_ = -1;
};

}  // namespace caravan

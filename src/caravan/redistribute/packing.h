#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/mesh/placement.h"

namespace caravan {

/// Pieces in one flat buffer, with the parts of the coordinates in order, as communicators expect it.

/// A shard of dim `dim` of a tensor: the rows of each coordinate, which are in `blocks`.
struct ShardParts {
  int dim = 0;
  std::vector<int64_t> rows;
  int blocks = 1;
};

/// The elements of dims [begin, end).
int64_t num_elements(at::IntArrayRef sizes, int64_t begin, int64_t end);
inline int64_t num_elements(at::IntArrayRef sizes) {
  return num_elements(sizes, 0, static_cast<int64_t>(sizes.size()));
}

/// Elements of each part: parts[i] rows of dim `dim` of a tensor of `sizes`.
std::vector<int64_t> counts_of(const std::vector<int64_t>& parts, at::IntArrayRef sizes, int dim);

/// The parts of x, one after another. x itself if it already has that order.
at::Tensor pack(const at::Tensor& x, const ShardParts& parts);
/// The inverse: a tensor of `shape`.
at::Tensor unpack(const at::Tensor& flat, at::IntArrayRef shape, const ShardParts& parts);

/// The same for parts that are runs of rows: those of each coordinate are one tensor.
at::Tensor pack_runs(const at::Tensor& x, int dim, const std::vector<std::vector<RowRun>>& runs);
at::Tensor unpack_runs(const at::Tensor& flat, at::IntArrayRef shape, int dim,
                       const std::vector<std::vector<RowRun>>& runs);

/// The rows of one coordinate: a view, in which several blocks are dims [blocks, rows of a block].
at::Tensor own_rows(const at::Tensor& x, const ShardParts& parts, int coord);

}  // namespace caravan

#include "caravan/redistribute/packing.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "caravan/redistribute/cell.h"

namespace caravan {
namespace {

using Rows = std::vector<int64_t>;

/// The shape of a tensor whose dim `dim` is split into [blocks, rows of a block].
Rows blocked_shape(at::IntArrayRef shape, int dim, int blocks) {
  Rows split = shape.vec();
  split[dim] /= blocks;
  split.insert(split.begin() + dim, blocks);
  return split;
}

/// The rows of one block.
Rows of_one_block(Rows rows, int blocks) {
  for (int64_t& part : rows) part /= blocks;
  return rows;
}

/// The parts[i] rows of dim `dim` of x, one part after another. x itself if it already has that order.
at::Tensor pack_rows(const at::Tensor& x, int dim, const Rows& parts) {
  if (num_elements(x.sizes(), 0, dim) == 1) return x.contiguous();
  at::Tensor flat = at::empty({x.numel()}, x.options());
  int64_t row = 0;
  int64_t element = 0;
  for (const int64_t rows : parts) {
    const at::Tensor part = x.narrow(dim, row, rows);
    flat.narrow(0, element, part.numel()).view(part.sizes()).copy_(part);
    row += rows;
    element += part.numel();
  }
  return flat;
}

/// The inverse: parts[i] rows of dim `dim` of a tensor of `shape`.
at::Tensor unpack_rows(const at::Tensor& flat, at::IntArrayRef shape, int dim, const Rows& parts) {
  if (num_elements(shape, 0, dim) == 1) return flat.view(shape);
  std::vector<at::Tensor> views;
  Rows part_shape = shape.vec();
  int64_t element = 0;
  for (const int64_t rows : parts) {
    part_shape[dim] = rows;
    const int64_t count = num_elements(part_shape);
    views.push_back(flat.narrow(0, element, count).view(part_shape));
    element += count;
  }
  return at::cat(views, dim);
}

/// Calls copy(rows of the piece, the same rows in the flat buffer) for each run of rows of dim `dim` of a piece. The
/// buffer has the runs of each coordinate as one tensor, one coordinate after another.
template <typename Copy>
void for_runs(const at::Tensor& piece, const at::Tensor& flat, int dim, const std::vector<std::vector<RowRun>>& runs,
              const Copy& copy) {
  int64_t element = 0;
  for (const auto& of_coord : runs) {
    Rows shape = piece.sizes().vec();
    shape[dim] = 0;
    for (const RowRun& run : of_coord) shape[dim] += run.rows;
    const int64_t count = num_elements(shape);
    const at::Tensor part = flat.narrow(0, element, count).view(shape);
    int64_t row = 0;
    for (const RowRun& run : of_coord) {
      copy(piece.narrow(dim, run.begin, run.rows), part.narrow(dim, row, run.rows));
      row += run.rows;
    }
    element += count;
  }
}

}  // namespace

int64_t num_elements(at::IntArrayRef sizes, int64_t begin, int64_t end) {
  int64_t count = 1;
  for (int64_t dim = begin; dim < end; ++dim) count *= sizes[dim];
  return count;
}

Rows counts_of(const Rows& parts, at::IntArrayRef sizes, int dim) {
  const int64_t elements =
      num_elements(sizes, 0, dim) * num_elements(sizes, dim + 1, static_cast<int64_t>(sizes.size()));
  Rows counts;
  for (const int64_t rows : parts) counts.push_back(rows * elements);
  return counts;
}

at::Tensor pack(const at::Tensor& x, const ShardParts& parts) {
  if (parts.blocks == 1) return pack_rows(x, parts.dim, parts.rows);
  return pack_rows(x.view(blocked_shape(x.sizes(), parts.dim, parts.blocks)), parts.dim + 1,
                   of_one_block(parts.rows, parts.blocks));
}

at::Tensor unpack(const at::Tensor& flat, at::IntArrayRef shape, const ShardParts& parts) {
  if (parts.blocks == 1) return unpack_rows(flat, shape, parts.dim, parts.rows);
  return unpack_rows(flat, blocked_shape(shape, parts.dim, parts.blocks), parts.dim + 1,
                     of_one_block(parts.rows, parts.blocks))
      .reshape(shape);
}

at::Tensor pack_runs(const at::Tensor& x, int dim, const std::vector<std::vector<RowRun>>& runs) {
  at::Tensor flat = at::empty({x.numel()}, x.options());
  for_runs(x, flat, dim, runs, [](const at::Tensor& rows, const at::Tensor& packed) { packed.copy_(rows); });
  return flat;
}

at::Tensor unpack_runs(const at::Tensor& flat, at::IntArrayRef shape, int dim,
                       const std::vector<std::vector<RowRun>>& runs) {
  at::Tensor result = at::empty(shape, flat.options());
  for_runs(result, flat, dim, runs, [](const at::Tensor& rows, const at::Tensor& packed) { rows.copy_(packed); });
  return result;
}

at::Tensor own_rows(const at::Tensor& x, const ShardParts& parts, int coord) {
  const int64_t begin = sum_of({parts.rows.data(), static_cast<size_t>(coord)}) / parts.blocks;
  const int64_t rows = parts.rows[coord] / parts.blocks;
  if (parts.blocks == 1) return x.narrow(parts.dim, begin, rows);
  return x.view(blocked_shape(x.sizes(), parts.dim, parts.blocks)).narrow(parts.dim + 1, begin, rows);
}

}  // namespace caravan

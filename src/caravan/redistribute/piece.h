#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "caravan/mesh/layout.h"

namespace caravan {

/// The elements of `whole` in the box, in its memory.
inline at::Tensor piece_of(at::Tensor whole, const Box& box) {
  for (size_t dim = 0; dim < box.size.size(); ++dim) {
    whole = whole.narrow(static_cast<int64_t>(dim), box.offset[dim], box.size[dim]);
  }
  return whole;
}

/// The elements of `piece` that are in one of its boxes, in its memory.
inline at::Tensor part_of(at::Tensor piece, const PieceBox& box) {
  return piece_of(std::move(piece), Box{box.local_offset, box.global.size});
}

/// The piece of `whole` that consists of `boxes`: in its memory if it is one box.
inline at::Tensor piece_of(const at::Tensor& whole, const std::vector<PieceBox>& boxes) {
  if (boxes.size() == 1) return piece_of(whole, boxes.front().global);
  std::vector<int64_t> shape = boxes.back().local_offset;  // the last box ends where the piece does
  for (size_t dim = 0; dim < shape.size(); ++dim) shape[dim] += boxes.back().global.size[dim];
  at::Tensor piece = at::empty(shape, whole.options());
  for (const PieceBox& box : boxes) part_of(piece, box).copy_(piece_of(whole, box.global));
  return piece;
}

}  // namespace caravan

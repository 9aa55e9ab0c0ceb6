#pragma once

#include <ATen/core/Tensor.h>

#include "caravan/mesh/layout.h"

namespace caravan {

/// The elements of `whole` in the box, in its memory.
inline at::Tensor piece_of(at::Tensor whole, const Box& box) {
  for (size_t dim = 0; dim < box.size.size(); ++dim) {
    whole = whole.narrow(static_cast<int64_t>(dim), box.offset[dim], box.size[dim]);
  }
  return whole;
}

}  // namespace caravan

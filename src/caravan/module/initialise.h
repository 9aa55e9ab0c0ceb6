#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/module/parameter.h"

namespace caravan {

/// Fills `piece` (contiguous, any floating dtype, on the CPU) with the elements of `box` of the global parameter's
/// initial values: element i (row-major in the global tensor) depends only on (seed, name, i); norms of rows on those
/// of the matrix. A tile has those of its rows in the tensor from which it is cut.
void initialise(at::Tensor& piece, const Parameter& parameter, const Box& box, uint64_t seed);
/// The same for a piece of several boxes.
void initialise(at::Tensor& piece, const Parameter& parameter, const std::vector<PieceBox>& boxes, uint64_t seed);

}  // namespace caravan

#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace caravan {

/// Throws DataError for a label that is neither a row of the vocabulary nor kIgnoredLabel. Labels are contiguous.
void check_labels(const at::Tensor& labels, int64_t vocabulary);

/// Throws ShapeError unless hidden [.., width], weight [rows, width] and labels [..] fit.
void check_loss_shapes(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels);

}  // namespace caravan

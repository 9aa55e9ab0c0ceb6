#pragma once

#include <ATen/core/Tensor.h>

#include "caravan/module/parameter.h"
#include "caravan/nn/row_reduction.h"

namespace caravan {

// The arithmetic of magnitudes (LoraConfig::dora).

/// |row of W + scale B A| for each row: [n], in the compute type, at least 1e-30, without a graph. W [n, k], A [r, k],
/// B [n, r]. W + scale B A exists for some rows at a time. `reduction`: sums the squares of rows whose columns are
/// split over ranks; null: they are whole. `squares`, if given: is set to the tensor that was reduced.
at::Tensor adapted_row_norms(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b, double scale,
                             RowReduction* reduction, at::Tensor* squares = nullptr);

/// x m / norms: [.., n], with a magnitude m and a norm for each of the n features. `norms` counts as a constant.
/// Differentiable once; the gradient of m is accumulated.
at::Tensor with_magnitudes(const at::Tensor& x, Parameter& magnitude, const at::Tensor& norms);

}  // namespace caravan

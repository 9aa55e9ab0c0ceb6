#pragma once

#include <cmath>

#include <ATen/core/Tensor.h>
#include <ATen/ops/aminmax.h>

namespace caravan {

/// Whether all numbers are finite; true for integers. One pass, without a temporary tensor.
inline bool all_finite(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || !tensor.is_floating_point()) return true;
  const auto [least, most] = at::aminmax(tensor.detach());  // both are NaN if one number is
  return std::isfinite(least.item<double>()) && std::isfinite(most.item<double>());
}

}  // namespace caravan

#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace caravan {

/// How far a tensor is from the one it should be.
struct Verdict {
  double error = 0;                ///< |got - want| / (|want| + floor), in 2-norms
  std::optional<double> factor{};  ///< k, if it is k times the other one
};

/// Whether `got` is a multiple of `want` is decided within `tolerance`.
Verdict judge(const at::Tensor& got, const at::Tensor& want, double floor, double tolerance);

/// The 2-norm.
double length_of(const at::Tensor& x);

}  // namespace caravan

#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace caravan {

/// Replaces `x` = U S V^T, [rows, columns] of fp32 or fp64 and contiguous, by U S' V^T with S' near 1 (0.7 to 1.2 after
/// 5 steps): quintic Newton-Schulz steps (Jordan et al., "Muon", 2024) on the smaller side of the matrix. The scale of
/// `x` does not matter, unless its norm is below 1e-7; zeros stay zeros. Beside `x` it needs another matrix of its
/// size, and two of the smaller side. Not differentiable.
void newton_schulz(const at::Tensor& x, int64_t steps);

/// Additions and multiplications of a step.
double newton_schulz_flops(int64_t rows, int64_t columns) noexcept;

}  // namespace caravan

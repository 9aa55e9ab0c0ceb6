#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace caravan {

/// Whether few_rows_product takes them: fewer than kFewRows rows of fp32, bf16 or fp16, not on an accelerator, and a
/// weight that has its rows as they are read.
bool is_few_rows_product(const at::Tensor& a, const at::Tensor& b);

/// a b^T + bias: [m, k] and [n, k] -> [m, n] of `type`, fp32 or that of a; bias [n]. Takes the time of reading b once.
/// Added up in fp32, rounded once. The bits of a row depend on no other row, on no number of threads and on no
/// instruction set.
at::Tensor few_rows_product(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias,
                            at::ScalarType type);

}  // namespace caravan

#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace caravan {

/// Whether panel_product takes them: fp32, or bf16 of which there are tiles (tile_product.h) and of an even k, not
/// empty, not on an accelerator.
bool is_panel_product(const at::Tensor& a, const at::Tensor& b);

/// a b^T + bias: [m, k] and [n, k] -> [m, n] of `type`, rounded once; bias [n]. b is packed in panels of 64 columns,
/// each of which is multiplied with all rows while it is in the cache. The same bits on any number of threads.
at::Tensor panel_product(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias,
                         at::ScalarType type);
/// y += a b^T, of y [m, n] that is contiguous; 16 bits are rounded once.
void add_panel_product(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b);

}  // namespace caravan

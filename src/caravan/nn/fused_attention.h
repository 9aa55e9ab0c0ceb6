#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace caravan {

/// softmax(q k^T / sqrt(width)) v with torch's fused kernels: [batch, heads, queries, width] and [batch, kv heads,
/// keys, width]; kv heads divide the heads. `mask`: bool [queries, keys] or [batch, 1, queries, keys], true where a
/// query sees a key; or `is_causal`, for as many queries as keys. Differentiable once. bf16 on the CPU is computed in
/// fp32 where products_in_use() says attention=fp32: torch's backward in bf16 is slower than that, even with bf16
/// instructions.
at::Tensor fused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::optional<at::Tensor>& mask, bool is_causal);

/// Causal attention of a whole sequence, with the layout of the layers: [batch, positions, heads, width] and [batch,
/// positions, kv heads, width] -> [batch, positions, heads, width]. The same numbers as fused_attention on transposed
/// tensors, without the views that autograd would pay for.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// a b of [batch, heads, m, k] and [batch, heads, k, n], for attention that is not fused. Differentiable once. bf16 in
/// the same arithmetic as above; saves its operands in bf16.
at::Tensor attention_product(const at::Tensor& a, const at::Tensor& b);

}  // namespace caravan

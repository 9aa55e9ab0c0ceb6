#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace caravan {

/// softmax(q k^T / sqrt(width)) v with torch's fused kernels: [batch, heads, queries, width] and [batch, kv heads,
/// keys, width]; kv heads divide the heads. `mask`: bool [queries, keys] or [batch, 1, queries, keys], true where a
/// query sees a key; or `is_causal`, for as many queries as keys. Differentiable once. bf16 on the CPU is computed in
/// fp32 if products_in_use() says attention=fp32: torch's backward in bf16 is slower, even with bf16 instructions.
at::Tensor fused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::optional<at::Tensor>& mask, bool is_causal);

/// Causal attention of a whole sequence, with the layout of the layers: [batch, positions, heads, width] and [batch,
/// positions, kv heads, width] -> [batch, positions, heads, width]. The same numbers as fused_attention on transposed
/// tensors, without the views that autograd would pay for.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// The attention of queries to some of their keys. Blocks merge to the attention to all keys, weighted by their
/// log-sum-exps (Dao et al., "FlashAttention", NeurIPS 2022).
struct AttentionBlock {
  at::Tensor out;          ///< [batch, queries, heads, width]; fp32 (fp64 for fp64), even if the products are bf16
  at::Tensor log_sum_exp;  ///< [batch, heads, queries]; -infinity for a query that sees no key

  /// Merges the attention of the same queries to other keys, in place. Each of these queries already sees a key.
  void merge(const AttentionBlock& other) const;
  /// Queries [first, first + count): views.
  AttentionBlock queries(int64_t first, int64_t count) const;
};

/// The attention of [batch, queries, heads, width] to one block of keys and values, [batch, keys, kv heads, width], not
/// differentiable: in the arithmetic of fused_attention. `mask`: bool [batch, 1, queries, keys].
AttentionBlock attend_to_block(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const std::optional<at::Tensor>& mask, bool is_causal);

/// The contribution of one block to the gradients of q, k and v, in the dtype of AttentionBlock::out. `all`: the
/// attention to all blocks of the same queries; its `out` may be rounded to the dtype of q.
struct BlockGradients {
  at::Tensor q, k, v;
};
BlockGradients block_gradients(const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const AttentionBlock& all, const std::optional<at::Tensor>& mask,
                               bool is_causal);

/// a b of [batch, heads, m, k] and [batch, heads, k, n], for attention that is not fused. Differentiable once. bf16 in
/// the same arithmetic as above; saves its operands in bf16.
at::Tensor attention_product(const at::Tensor& a, const at::Tensor& b);

}  // namespace caravan

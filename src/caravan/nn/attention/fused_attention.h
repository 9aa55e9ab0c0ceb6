#pragma once

#include <ATen/core/Tensor.h>

#include "caravan/nn/attention/attention_dropout.h"
#include "caravan/nn/attention/scores.h"
#include "caravan/nn/attention/visible_keys.h"

namespace caravan {

/// softmax(scores of q k^T) v over the keys that a query sees, with the layout of the layers: [batch, queries, heads,
/// width] and [batch, keys, kv heads, width] -> [batch, queries, heads, width]; kv heads divide the heads. `scores`: by
/// default scaled products. 0 for a query that sees no key. Differentiable once, also in the bias of the scores.
///
/// On the CPU, tile by tile (tiled_attention.h), and one query without gradients by rows (one_query.h); 16 bits in the
/// arithmetic of products_in_use(). By torch's kernels on accelerators and in fp64; what those lack (a cap, a bias) is
/// then computed with all scores in memory. With `dropout` (or null) weights are dropped; in fp64 they are then in
/// memory, and accelerators are refused. Throws UsageError for attention=native where there are no products of bf16
/// tiles, and what check_scores throws.
at::Tensor fused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const VisibleKeys& seen,
                           const Scores& scores = {}, const c10::intrusive_ptr<AttentionDropout>& dropout = {});

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

/// The attention to one block of keys and values, on the CPU and not differentiable: in the arithmetic of
/// fused_attention.
AttentionBlock attend_to_block(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const VisibleKeys& seen,
                               const Scores& scores = {});

/// The contribution of one block to the gradients of q, k and v, in the dtype of AttentionBlock::out, and of the bias,
/// if it requires one. `all`: the attention to all blocks of the same queries; its `out` may be rounded to the dtype
/// of q.
struct BlockGradients {
  at::Tensor q, k, v;
  at::Tensor bias;  ///< or undefined
};
BlockGradients block_gradients(const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const AttentionBlock& all, const VisibleKeys& seen,
                               const Scores& scores = {});

}  // namespace caravan

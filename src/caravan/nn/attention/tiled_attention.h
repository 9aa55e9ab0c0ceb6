#pragma once

#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>

#include "caravan/nn/attention/attention_dropout.h"
#include "caravan/nn/attention/scores.h"
#include "caravan/nn/attention/visible_keys.h"

namespace caravan {

/// The operands of products for bf16 tensors. All but the first need tiles of bf16 (tile_product.h).
enum class TileOperands : uint8_t {
  fp32,         ///< widened
  exact_bf16,   ///< bf16 where both are tensors as they came: scores, and gradients of weights. Nothing is rounded
  rounded_bf16  ///< all bf16: weights and the gradients of scores are rounded
};

/// Throws ShapeError unless keys and values fit the queries.
void check_attention_operands(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// softmax(scores of q k^T) v on the CPU, tile by tile and without the scores in memory (Dao, "FlashAttention-2",
/// arXiv 2307.08691). Tiles that no query sees are skipped. Layouts are those of the
/// layers: q [batch, queries, heads, width], k and v [batch, keys, kv heads, width]; kv heads divide the heads.
/// Sums and the softmax are in fp32. `dropout` (or null) drops weights; backward draws its numbers again. Not
/// differentiable by autograd. Scores that overflow to -infinity weigh least: where all that a query sees do, the
/// result is the mean of the values. Takes fp32, bf16 and fp16, and meta tensors. Throws what check_scores throws.
struct TiledAttention {
  at::Tensor out;          ///< [batch, queries, heads, width]; 0 for a query that sees no key
  at::Tensor log_sum_exp;  ///< fp32 [batch, heads, queries]; -infinity for a query that sees no key
};
TiledAttention tiled_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const VisibleKeys& seen,
                               const Scores& scores, const AttentionDropout* dropout, TileOperands operands,
                               at::ScalarType out_type);

/// The gradients of q, k and v, of `type`, and in fp32 that of the bias, if it requires one. `out` and `log_sum_exp`
/// may be those of the attention to more keys than these, of which `k` and `v` are a part.
struct AttentionGradients {
  at::Tensor q, k, v;
  at::Tensor bias;  ///< or undefined
};
AttentionGradients tiled_attention_backward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                                            const at::Tensor& v, const TiledAttention& all, const VisibleKeys& seen,
                                            const Scores& scores, const AttentionDropout* dropout,
                                            TileOperands operands, at::ScalarType type);

}  // namespace caravan

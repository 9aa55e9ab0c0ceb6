#pragma once

#include <ATen/core/Tensor.h>

#include "caravan/nn/attention/attention_dropout.h"
#include "caravan/nn/attention/scores.h"
#include "caravan/nn/attention/tiled_attention.h"
#include "caravan/nn/attention/visible_keys.h"

namespace caravan {

/// Attention by the plain formula, with all scores in memory: for what fused kernels lack, in fp64 and on accelerators.
/// Operands as those of fused_attention; the softmax of 16 bits is in fp32. Differentiable. With `dropout` (or null)
/// not on accelerators.
at::Tensor attention_in_memory(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const VisibleKeys& seen,
                               const Scores& scores, const AttentionDropout* dropout);

/// The same as attend_to_block and block_gradients (fused_attention.h) give it: not differentiable.
TiledAttention block_in_memory(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const VisibleKeys& seen,
                               const Scores& scores);
AttentionGradients block_gradients_in_memory(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v, const TiledAttention& all, const VisibleKeys& seen,
                                             const Scores& scores);

}  // namespace caravan

#pragma once

#include <ATen/core/Tensor.h>

namespace caravan {

inline constexpr int64_t kIgnoredLabel = -100;  ///< a token without a target

/// scale * sum over the tokens that have a target of -log softmax(hidden weight^T)[label], fused and in chunks of
/// tokens: logits exist for one chunk at a time, in the compute dtype; statistics are fp32 (fp64 for fp64).
///
///   hidden  [.., width], weight [vocabulary, width]: fp32, bf16 or fp64, of one dtype; labels [..] int64
///   returns a scalar, fp32 (fp64 for fp64); 0 if no token has a target
///   grad    of hidden and weight: computed here, chunk by chunk, where they need one; backward only scales them.
///           weight's is summed over chunks in fp32. Not differentiable twice.
///   throws  DataError for a label that is neither a row of weight nor kIgnoredLabel; ShapeError
at::Tensor fused_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                               double scale);

}  // namespace caravan

#pragma once

#include <ATen/core/Tensor.h>

namespace caravan {

inline constexpr int64_t kIgnoredLabel = -100;  ///< a token without a target

/// scale * sum over the tokens with a target of -log softmax(hidden weight^T)[label]. Fused, in chunks of tokens: only
/// the logits of one chunk exist at a time, in the compute dtype. Statistics are fp32 (fp64 for fp64).
///
///   hidden  [.., width]; weight [vocabulary, width], of the same dtype: fp32, bf16 or fp64; labels [..] int64
///   returns a scalar, fp32 (fp64 for fp64); 0 if no token has a target
///   grad    of hidden and weight, if required: computed in forward, chunk by chunk; backward only scales them. That
///           of weight is summed over chunks in fp32. Not differentiable twice.
///   throws  DataError for a label that is neither a row of weight nor kIgnoredLabel; ShapeError for shapes or dtypes
///           that do not match
at::Tensor fused_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                               double scale);

}  // namespace caravan

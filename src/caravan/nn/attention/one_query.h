#pragma once

#include <ATen/core/Tensor.h>

#include "caravan/nn/attention/scores.h"
#include "caravan/nn/attention/visible_keys.h"

namespace caravan {

/// The attention of one query of each sequence, [batch, 1, heads, width], to keys and values [batch, keys, kv heads,
/// width] on the CPU: for generation. Rows are read where a KV cache holds them, once for all heads that share them, in
/// pieces over which threads are divided; so it takes the time of reading them. Computed in fp32, rounded once. Bits
/// depend on no number of threads, and on no instruction set. Not differentiable. Takes fp32, bf16 and fp16, and meta
/// tensors; throws what check_scores throws.
at::Tensor attention_of_one_query(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const VisibleKeys& seen, const Scores& scores);

}  // namespace caravan

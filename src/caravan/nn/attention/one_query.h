#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/nn/attention/scores.h"
#include "caravan/nn/attention/visible_keys.h"

namespace caravan {

/// The attention of one query of each sequence, [batch, 1, heads, width], to keys and values [batch, keys, kv heads,
/// width] on the CPU: for generation. Rows are read where they are, once for all heads that share them, in pieces over
/// which threads are divided; so it takes the time of reading them. Computed in fp32, rounded once. Bits depend on no
/// other sequence, on no number of threads, and on no instruction set. Not differentiable. Takes fp32, bf16 and fp16,
/// and meta tensors; throws what check_scores throws.
at::Tensor attention_of_one_query(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const VisibleKeys& seen, const Scores& scores);

/// Keys and values of a sequence, in blocks of a cache.
struct CachedKeys {
  std::vector<const void*> keys, values;  ///< each [kv heads, block, width], of the dtype of the queries
  int64_t first = 0, end = 0;             ///< those that the query sees; its own is the last
};

/// The same for queries that each see keys of a cache: q [batch, positions, heads, width], and a CachedKeys for each
/// query of each sequence, in order. The bias of `scores`, if there is one, is for all distances of a query from its
/// keys; it has no positions.
at::Tensor attention_to_cache(const at::Tensor& q, int64_t kv_heads, int64_t block, std::span<const CachedKeys> seen,
                              const Scores& scores);

}  // namespace caravan

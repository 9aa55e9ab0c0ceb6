#pragma once

#include <cmath>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "caravan/nn/attention/visible_keys.h"

namespace caravan {

/// How the scores of an attention are made of the products of queries and keys: cap(scale q.k) + bias, where
/// cap(s) = soft_cap tanh(s / soft_cap). The log-sum-exps of an attention are those of these scores.
struct Scores {
  double scale = 0;     ///< 0: 1 / sqrt(head width)
  double soft_cap = 0;  ///< 0: none
  /// Added for the distance of a key from its query: [heads, span], of the heads of queries that are here; used in fp32
  /// (fp64 for fp64). Undefined: none. A key at position k adds bias[head][k - p + zero] to the score of a query at
  /// position p. Differentiable; its gradient is computed if it requires one.
  at::Tensor bias{};
  int64_t zero = 0;  ///< the index of distance 0
  /// int64 or int32 [queries] and [keys]; undefined: query i and key i are at i. Those of keys ascend.
  at::Tensor query_positions{}, key_positions{};

  /// Whether they are scaled products alone.
  bool is_plain() const noexcept { return soft_cap == 0 && !bias.defined(); }
  double scale_of(int64_t width) const noexcept {
    return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(width));
  }
};

/// Throws UsageError for a negative or infinite scale or cap, ShapeError unless bias and positions fit the heads,
/// queries and keys of an attention, and a distance between a query and a key that it sees has a bias.
void check_scores(const Scores& scores, const at::Tensor& q, const at::Tensor& k, const VisibleKeys& seen);

/// The index of the bias of each query and key, [queries * keys], on the device of the bias. Of keys that are not seen:
/// any.
at::Tensor index_of_pairs(const Scores& scores, int64_t queries, int64_t keys);
/// [heads, queries, keys], of the dtype of the bias. Differentiable.
at::Tensor bias_of_pairs(const Scores& scores, int64_t queries, int64_t keys);

}  // namespace caravan

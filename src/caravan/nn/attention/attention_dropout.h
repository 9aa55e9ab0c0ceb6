#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "caravan/base/numeric/random.h"
#include "caravan/nn/dropout.h"

namespace caravan {

/// The random numbers of the weights of one attention, [batch, heads, queries, keys]: those that counter_dropout draws
/// for a tensor of them. The keys are those of the whole sequence from the first on.
class AttentionDropout final : public torch::CustomClassHolder {
 public:
  /// `key.index`: of batch, heads and queries; `sizes`: of these in the local tensor; `num_keys` of the sequence.
  AttentionDropout(double dropout, DropoutKey key, const std::vector<int64_t>& sizes, int64_t num_keys);

  /// factors[i] = 1 / (1 - dropout) or 0, of the keys [first, first + count) of a query.
  void draw(int64_t row, int64_t head, int64_t query, int64_t first, std::span<float> factors) const;
  /// Weights in memory, [batch, heads, queries, keys], times their factors: counter_dropout. Differentiable.
  at::Tensor dropped(const at::Tensor& weights) const;

 private:
  double dropout_;
  DropoutKey key_;
  RandomStream stream_;
  std::vector<at::Tensor> indices_;  ///< global index of each local sequence, head and query
  std::vector<int64_t> global_;      ///< sizes of heads, queries and keys
};

}  // namespace caravan

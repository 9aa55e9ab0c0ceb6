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
  AttentionDropout(double dropout, const DropoutKey& key, const std::vector<int64_t>& sizes, int64_t num_keys);

  /// factors[i] = 1 / (1 - dropout) or 0, of the keys [first, first + count) of a query.
  void draw(int64_t row, int64_t head, int64_t query, int64_t first, std::span<float> factors) const;
  /// All of them, fp32 of the shape of `weights`, [batch, heads, queries, keys].
  at::Tensor factors(const at::Tensor& weights) const;

 private:
  float keep_;
  RandomStream stream_;
  std::vector<std::vector<int64_t>> index_;  ///< global index of each local sequence, head and query
  std::vector<int64_t> global_;              ///< sizes of heads, queries and keys
};

}  // namespace caravan

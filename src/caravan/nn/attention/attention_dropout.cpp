#include "caravan/nn/attention/attention_dropout.h"

#include <ATen/ops/empty.h>

namespace caravan {

AttentionDropout::AttentionDropout(double dropout, const DropoutKey& key, const std::vector<int64_t>& sizes,
                                   int64_t num_keys)
    : keep_(static_cast<float>(1 - dropout)), stream_(key.seed, key.name, key.step) {
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    std::vector<int64_t>& indices = index_.emplace_back();
    for (const DimIndex::Run& run : key.index[dim].runs(sizes[dim])) {
      for (int64_t i = 0; i < run.count; ++i) indices.push_back(run.first + i);
    }
    if (dim > 0) global_.push_back(key.index[dim].global(sizes[dim]));
  }
  global_.push_back(num_keys);
}

void AttentionDropout::draw(int64_t row, int64_t head, int64_t query, int64_t first, std::span<float> factors) const {
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  const int64_t of_query = (index_[0][at(row)] * global_[0] + index_[1][at(head)]) * global_[1] + index_[2][at(query)];
  stream_.dropout_mask(static_cast<uint64_t>(of_query * global_[2] + first), keep_, factors);
}

at::Tensor AttentionDropout::factors(const at::Tensor& weights) const {
  at::Tensor factors = at::empty(weights.sizes(), weights.options().dtype(at::kFloat));
  if (weights.is_meta()) return factors;
  const int64_t keys = weights.size(3);
  auto* row = factors.mutable_data_ptr<float>();
  for (int64_t i = 0; i < weights.size(0) * weights.size(1) * weights.size(2); ++i, row += keys) {
    const int64_t query = i % weights.size(2), head = i / weights.size(2) % weights.size(1);
    draw(i / weights.size(2) / weights.size(1), head, query, 0, {row, static_cast<size_t>(keys)});
  }
  return factors;
}

}  // namespace caravan

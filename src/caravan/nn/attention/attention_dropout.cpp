#include "caravan/nn/attention/attention_dropout.h"

#include <utility>

namespace caravan {

AttentionDropout::AttentionDropout(double dropout, DropoutKey key, const std::vector<int64_t>& sizes, int64_t num_keys)
    : dropout_(dropout), key_(std::move(key)), stream_(key_.seed, key_.name, key_.step) {
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    indices_.push_back(key_.index[dim].indices(sizes[dim]));
    if (dim > 0) global_.push_back(key_.index[dim].global(sizes[dim]));
  }
  global_.push_back(num_keys);
}

void AttentionDropout::draw(int64_t row, int64_t head, int64_t query, int64_t first, std::span<float> factors) const {
  const auto index = [&](size_t dim, int64_t i) { return indices_[dim].const_data_ptr<int64_t>()[i]; };
  const int64_t of_query = (index(0, row) * global_[0] + index(1, head)) * global_[1] + index(2, query);
  stream_.dropout_mask(static_cast<uint64_t>(of_query * global_[2] + first), static_cast<float>(1 - dropout_), factors);
}

at::Tensor AttentionDropout::dropped(const at::Tensor& weights) const {
  DropoutKey key = key_;
  key.index.emplace_back(0, weights.size(3), global_.back());
  return counter_dropout(weights, dropout_, key);
}

}  // namespace caravan

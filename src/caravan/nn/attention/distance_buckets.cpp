#include "caravan/nn/attention/distance_buckets.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <ATen/ops/empty.h>

#include "caravan/nn/embedding.h"

namespace caravan {

/// Logarithms in fp32, as those of the published models.
int64_t DistanceBuckets::of(int64_t distance) const noexcept {
  int64_t count = weight->global_shape()[0];
  int64_t first = 0;
  if (!is_causal) {
    count /= 2;
    if (distance > 0) first = count;
  }
  const int64_t away = is_causal ? std::max<int64_t>(-distance, 0) : std::abs(distance);
  const int64_t single = count / 2;
  if (away < single) return first + away;
  const float ratio = std::log(static_cast<float>(away) / static_cast<float>(single)) /
                      static_cast<float>(std::log(static_cast<double>(most) / static_cast<double>(single)));
  const auto further = static_cast<int64_t>(ratio * static_cast<float>(count - single));
  return first + std::min(single + further, count - 1);
}

at::Tensor DistanceBuckets::biases(int64_t keys) const {
  const at::Tensor& table = weight->compute();
  const int64_t span = is_causal ? keys : 2 * keys - 1;
  at::Tensor ids = at::empty({span}, at::kLong);
  for (int64_t i = 0; i < span; ++i) ids.mutable_data_ptr<int64_t>()[i] = of(i - (keys - 1));
  if (!table.is_cpu())
    ids = table.is_meta() ? at::empty({span}, ids.options().device(at::kMeta)) : ids.to(table.device());
  return embedding(ids, *weight, "the buckets of distances").t().contiguous();
}

}  // namespace caravan

#include "caravan/nn/attention/distance_buckets.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

#include <ATen/ops/empty.h>

#include "caravan/nn/embedding.h"

namespace caravan {

/// Logarithms in fp32, as those of the published models.
int64_t DistanceBuckets::of(int64_t distance) const noexcept {
  int64_t count = weight_->global_shape()[0];
  int64_t first = 0;
  if (!is_causal_) {
    count /= 2;
    if (distance > 0) first = count;
  }
  const int64_t away = is_causal_ ? std::max<int64_t>(-distance, 0) : std::abs(distance);
  const int64_t single = count / 2;
  if (away < single) return first + away;
  const float ratio = std::log(static_cast<float>(away) / static_cast<float>(single)) /
                      static_cast<float>(std::log(static_cast<double>(most_) / static_cast<double>(single)));
  const auto further = static_cast<int64_t>(ratio * static_cast<float>(count - single));
  return first + std::min(single + further, count - 1);
}

at::Tensor DistanceBuckets::biases(int64_t keys) const {
  const at::Tensor& table = weight_->compute();
  const at::Tensor ids = ids_of(keys);
  const at::Tensor here =
      table.is_meta() ? at::empty(ids.sizes(), ids.options().device(at::kMeta)) : ids.to(table.device());
  return embedding(here, *weight_, "the buckets of distances").t().contiguous();
}

/// Texts grow token by token: the buckets of more keys than asked for serve the next ones.
at::Tensor DistanceBuckets::ids_of(int64_t keys) const {
  if (!known_ids_.defined() || known_ < keys) {
    known_ = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(keys)));
    known_ids_ = at::empty({is_causal_ ? known_ : 2 * known_ - 1}, at::kLong);
    for (int64_t i = 0; i < known_ids_.numel(); ++i) {
      known_ids_.mutable_data_ptr<int64_t>()[i] = of(i - (known_ - 1));
    }
  }
  return known_ids_.narrow(0, known_ - keys, is_causal_ ? keys : 2 * keys - 1);
}

}  // namespace caravan

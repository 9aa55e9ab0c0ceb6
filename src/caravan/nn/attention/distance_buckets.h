#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "caravan/module/parameter.h"

namespace caravan {

/// Biases of scores by buckets of distances: half of the buckets are of single distances, the others of ranges that
/// grow up to `most`. A layer that sees a whole text has separate buckets for keys behind the query. (T5, Raffel et
/// al., arXiv 1910.10683.) Not thread-safe.
class DistanceBuckets {
 public:
  DistanceBuckets() = default;
  DistanceBuckets(Parameter* weight, int64_t most, bool is_causal)
      : weight_(weight), most_(most), is_causal_(is_causal) {}

  /// [buckets, heads]; null: none. Several layers share it.
  Parameter* weight() const noexcept { return weight_; }
  /// The bucket of a key that is `distance` behind (below 0: before) its query.
  int64_t of(int64_t distance) const noexcept;
  /// The biases of the heads that are here for distances 1 - keys up to 0, or up to keys - 1 if not causal: [heads,
  /// span]. The gradient of the weight is accumulated.
  at::Tensor biases(int64_t keys) const;

 private:
  at::Tensor ids_of(int64_t keys) const;

  Parameter* weight_ = nullptr;
  int64_t most_ = 128;
  bool is_causal_ = true;
  mutable int64_t known_ = 0;  ///< keys of which all distances have their buckets in known_ids_
  mutable at::Tensor known_ids_{};
};

}  // namespace caravan

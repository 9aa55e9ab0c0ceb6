#pragma once

#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>

namespace caravan {

/// Cosines and sines of the rotary angles, computed on demand and shared by all layers of a model. Angles are computed
/// in fp32, position x theta^(-2i/head_width), as in the training of the published Llamas.
class RopeTable {
 public:
  RopeTable(int64_t head_width, double theta) : half_(head_width / 2), theta_(theta) {}

  /// cos and sin, [count, head_width / 2] each, of positions first .. first + count - 1, in fp32 or fp64.
  std::pair<at::Tensor, at::Tensor> rows(int64_t first, int64_t count, at::ScalarType type);

 private:
  void grow(int64_t positions, at::ScalarType type);

  int64_t half_;
  double theta_;
  at::Tensor cosine_;
  at::Tensor sine_;
};

/// Rotary position embedding: rotates the pairs (i, i + head_width / 2) of every head by the angle of their position.
///   x  [batch, sequence, heads, head_width]; its first position is `first`
at::Tensor rope(const at::Tensor& x, RopeTable& table, int64_t first);

}  // namespace caravan

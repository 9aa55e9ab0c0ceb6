#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "caravan/module/context.h"

namespace caravan {

/// Cosines and sines, [rows, head_width / 2] each, fp32 (fp64 for fp64): a row for every position of a sequence, or for
/// every token of a batch.
struct RopeAngles {
  at::Tensor cosine;
  at::Tensor sine;
};

/// The rotary angles, computed on demand and shared by all layers of a model. Angles are computed in fp32, position x
/// theta^(-2i/head_width), as in the training of the published Llamas.
class RopeTable {
 public:
  RopeTable(int64_t head_width, double theta) : half_(head_width / 2), theta_(theta) {}

  /// The angles of `positions`, int64 of any shape; undefined: 0, 1, .. up to `count`, which also bounds positions on
  /// the meta device. For tensors like `x`. Throws DataError for a negative position.
  RopeAngles angles(const at::Tensor& positions, int64_t count, const at::Tensor& x);

 private:
  void grow(int64_t positions, const at::TensorOptions& options);

  int64_t half_;
  double theta_;
  at::Tensor cosine_;
  at::Tensor sine_;
};

/// Rotary position embedding: rotates the pairs (i, i + head_width / 2) of every head by the angles of its token.
///   x  [batch, sequence, heads, head_width]; in a dry run of layouts it needs no angles
at::Tensor rope(const at::Tensor& x, const RopeAngles& angles, const ForwardContext& context, std::string_view what);

}  // namespace caravan

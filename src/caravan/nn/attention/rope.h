#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include "caravan/module/context.h"
#include "caravan/nn/attention/rope_frequencies.h"

namespace caravan {

/// Cosines and sines, [rows, rotated / 2] each, fp32 (fp64 for fp64): a row for every position of a sequence, or for
/// every token of a batch.
struct RopeAngles {
  at::Tensor cosine;
  at::Tensor sine;
};

/// The rotary angles, computed on demand and shared by all layers of a model with the same settings. Angles are
/// computed in fp32, position x frequency, as in the training of the published Llamas.
class RopeTable {
 public:
  explicit RopeTable(RopeSettings settings) : settings_(std::move(settings)) {}
  RopeTable(int64_t head_width, double theta) : RopeTable(RopeSettings{.rotated = head_width, .theta = theta}) {}

  const RopeSettings& settings() const noexcept { return settings_; }
  /// The angles of `positions`, int64 of any shape; undefined: 0, 1, .. up to `count`, which also bounds positions on
  /// the meta device. For tensors like `x`. `length`: of the sequence, on which some frequencies depend, and which
  /// ranks that have pieces of it agree on; 0: up to the largest position. Throws DataError for a negative position.
  RopeAngles angles(const at::Tensor& positions, int64_t count, const at::Tensor& x, int64_t length = 0);

 private:
  void fill(int64_t positions, const at::TensorOptions& options);

  RopeSettings settings_;
  RopeFrequencies frequencies_{};
  at::Tensor cosine_;
  at::Tensor sine_;
};

/// Rotary position embedding: rotates the pairs (i, i + rotated / 2) of every head by the angles of its token; features
/// behind the rotated ones stay as they are.
///   x  [batch, sequence, heads, head_width]; in a dry run of layouts it needs no angles
at::Tensor rope(const at::Tensor& x, const RopeAngles& angles, const ForwardContext& context, std::string_view what);

}  // namespace caravan

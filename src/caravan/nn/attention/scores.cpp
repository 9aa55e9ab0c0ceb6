#include "caravan/nn/attention/scores.h"

#include <algorithm>
#include <limits>
#include <string>

#include <ATen/ops/index_select.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/module/plan/dim_index.h"

namespace caravan {
namespace {

void check_positions(const at::Tensor& positions, int64_t count, const char* what) {
  if (!positions.defined()) return;
  const bool are_integers = positions.scalar_type() == at::kLong || positions.scalar_type() == at::kInt;
  if (are_integers && positions.sizes() == at::IntArrayRef{count}) return;
  throw ShapeError({"attention", "bias",
                    fmt::format("{} {} positions [{}] {}", count, what, join(positions.sizes()),
                                c10::toString(positions.scalar_type())),
                    "", "give int64 or int32, one for each"});
}

/// On the CPU; 0, 1, .. if there are none.
at::Tensor as_positions(const at::Tensor& positions, int64_t count) {
  if (!positions.defined()) return counted_up(0, count, at::kCPU);
  return positions.to(at::kCPU, at::kLong).contiguous();
}

struct Distances {
  int64_t least = std::numeric_limits<int64_t>::max();
  int64_t most = std::numeric_limits<int64_t>::min();
};

/// Between queries and keys that they see.
Distances visible_distances(const Scores& scores, int64_t queries, int64_t keys, const VisibleKeys& seen) {
  const at::Tensor of_queries = as_positions(scores.query_positions, queries);
  const at::Tensor of_keys = as_positions(scores.key_positions, keys);
  const auto* query_position = of_queries.const_data_ptr<int64_t>();
  const auto* key_position = of_keys.const_data_ptr<int64_t>();
  Distances found;
  for (int64_t row = 0; row < seen.num_rows(); ++row) {
    for (int64_t i = 0; i < queries; ++i) {
      const auto [first, end] = seen.range(row, i, keys);
      if (first >= end) continue;
      found.least = std::min(found.least, key_position[first] - query_position[i]);
      found.most = std::max(found.most, key_position[end - 1] - query_position[i]);
    }
  }
  return found;
}

}  // namespace

void check_scores(const Scores& scores, const at::Tensor& q, const at::Tensor& k, const VisibleKeys& seen) {
  if (!(scores.scale >= 0 && std::isfinite(scores.scale) && scores.soft_cap >= 0 && std::isfinite(scores.soft_cap))) {
    throw UsageError({"attention", "scores",
                      fmt::format("a scale of {} and a cap of {}", scores.scale, scores.soft_cap), "",
                      "give positive numbers, or 0 for the scale of the width and for no cap"});
  }
  const int64_t queries = q.size(1), keys = k.size(1);
  check_positions(scores.query_positions, queries, "queries have");
  check_positions(scores.key_positions, keys, "keys have");
  if (!scores.bias.defined()) return;
  const at::Tensor& bias = scores.bias;
  if (bias.dim() != 2 || bias.size(0) != q.size(2) || !bias.is_floating_point()) {
    throw ShapeError(
        {"attention", "bias",
         fmt::format("[{}] {} for {} heads", join(bias.sizes()), c10::toString(bias.scalar_type()), q.size(2)), "",
         "give floating-point numbers [heads, span] of the heads that are here"});
  }
  if (q.is_meta()) return;
  const Distances visible = visible_distances(scores, queries, keys, seen);
  if (visible.least > visible.most) return;
  if (visible.least + scores.zero >= 0 && visible.most + scores.zero < bias.size(1)) return;
  throw ShapeError({"attention", "bias",
                    fmt::format("queries see keys at distances {} to {}, and there are biases of {} to {}",
                                visible.least, visible.most, -scores.zero, bias.size(1) - 1 - scores.zero),
                    "", "give a bias for every distance"});
}

at::Tensor index_of_pairs(const Scores& scores, int64_t queries, int64_t keys) {
  const at::Device device = scores.bias.device();
  const auto positions = [&](const at::Tensor& given, int64_t count) {
    return given.defined() ? given.to(device, at::kLong) : counted_up(0, count, device);
  };
  const at::Tensor distance =
      positions(scores.key_positions, keys).unsqueeze(0) - positions(scores.query_positions, queries).unsqueeze(1);
  return (distance + scores.zero).clamp(0, scores.bias.size(1) - 1).flatten();
}

at::Tensor bias_of_pairs(const Scores& scores, int64_t queries, int64_t keys) {
  return scores.bias.index_select(1, index_of_pairs(scores, queries, keys)).view({scores.bias.size(0), queries, keys});
}

}  // namespace caravan

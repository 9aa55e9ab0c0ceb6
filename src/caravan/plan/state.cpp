#include "caravan/plan/state.h"

#include <algorithm>

namespace caravan {
namespace {

constexpr double kRestBytes = 4;
constexpr double kGradientBytes = 4;
/// Gradients of units that are being summed, and two that are on their way (GradientSums).
constexpr double kGradientBuffers = 3;

}  // namespace

void StateShape::count(const ModelConfig& model) noexcept {
  parameters = static_cast<double>(model.num_parameters());
  const double embedding = static_cast<double>(model.vocabulary) * static_cast<double>(model.width);
  ModelConfig bare = model;
  bare.layers = 0;
  const double layers = parameters - static_cast<double>(bare.num_parameters());
  largest_unit = std::max(embedding, layers / static_cast<double>(std::max<int64_t>(model.layers, 1)));
}

bool StateShape::reduces_each() const noexcept { return choice.shards_gradients() && choice.accumulate == "sharded"; }

StateBytes state_bytes(const StateShape& shape) noexcept {
  const double p = shape.parameters;
  const auto n = static_cast<double>(shape.shards());
  const auto leaf = static_cast<double>(shape.compute_bytes);
  const bool is_copied = leaf != kRestBytes;
  const bool keeps_all = shape.shards() == 1 || !shape.choice.frees_parameters();
  const double leaves = shape.is_shared() ? leaf * p / n : keeps_all ? leaf * p : 0;
  const double rests = is_copied || leaves == 0 ? kRestBytes * p / n : 0;
  const bool is_reduced_in_place = n == 1 || !shape.choice.shards_gradients();
  StateBytes bytes{.parameters = leaves + rests,
                   .gradients = kGradientBytes * (is_reduced_in_place ? p : p / n),
                   .optimizer = kRestBytes * static_cast<double>(shape.num_moments) * p / n};
  if (n == 1) return bytes;
  if (leaves == 0) {
    const double units = static_cast<double>(2 + shape.choice.prefetch) * shape.largest_unit;
    bytes.buffers += leaf * (shape.choice.reshard_after_forward ? std::min(units, p) : p);
  }
  if (!is_reduced_in_place) {
    bytes.buffers += kGradientBytes * (shape.reduces_each() ? std::min(kGradientBuffers * shape.largest_unit, p) : p);
  }
  return bytes;
}

StateTraffic state_traffic(const StateShape& shape) noexcept {
  const double p = shape.parameters;
  const auto n = static_cast<double>(shape.shards());
  const double replicas = static_cast<double>(shape.ranks) / n;
  const auto steps = static_cast<double>(shape.num_micro_batches);
  StateTraffic traffic;
  traffic.reduced = p * (shape.reduces_each() ? steps : 1);
  // Over shards: half of an all-reduce; where shards add up, once for each micro-batch. Over replicas, of what is left:
  // a whole one, once a step.
  const double reduced = traffic.reduced * (n - 1) / n + p * 2 * (replicas - 1) / replicas / n;
  double gathered = 0;
  if (n > 1) {
    const bool is_freed = shape.choice.frees_parameters() && shape.choice.reshard_after_forward && !shape.is_shared();
    traffic.gathered = p * (is_freed ? 2 * steps : 1);
    gathered = traffic.gathered * (n - 1) / n;
  }
  traffic.elements = reduced + gathered;
  traffic.bytes = kGradientBytes * reduced + static_cast<double>(shape.compute_bytes) * gathered;
  return traffic;
}

}  // namespace caravan

#include "caravan/plan/twins.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>

#include "caravan/plan/neighbours.h"
#include "caravan/techniques/offload/kinds.h"

namespace caravan {
namespace {

auto arrangement_of(const Recipe& recipe, int num_ranks) {
  return std::tuple(split_text(recipe, plan_batch(recipe, num_ranks).dp), recipe.data_parallel.name());
}

auto major_keys(const Recipe& recipe, int num_ranks) {
  return std::tuple(arrangement_of(recipe, num_ranks), recipe.memory.recompute.is_none(),
                    is_offload_used(recipe.offload));
}

/// Whether a layout is slower than another one, and saves no memory.
bool is_worse(const Prediction& one, const Prediction& than) {
  constexpr double kSaves = 0.99;
  const auto saves = [](int64_t bytes, int64_t of) {
    return static_cast<double>(bytes) < kSaves * static_cast<double>(of);
  };
  return one.seconds >= than.seconds && !saves(one.memory.total(), than.memory.total()) &&
         !saves(one.host_bytes, than.host_bytes);
}

}  // namespace

size_t drop_twins(std::vector<PlannedLayout>& rows, int num_ranks) {
  constexpr double kSame = 0.01;
  std::vector<PlannedLayout> kept;
  for (PlannedLayout& row : rows) {
    const bool is_twin = std::ranges::any_of(kept, [&](const PlannedLayout& other) {
      const bool is_equal = std::abs(row.prediction.seconds / other.prediction.seconds - 1) < kSame &&
                            major_keys(row.recipe, num_ranks) == major_keys(other.recipe, num_ranks);
      return is_equal || (arrangement_of(row.recipe, num_ranks) == arrangement_of(other.recipe, num_ranks) &&
                          is_worse(row.prediction, other.prediction));
    });
    if (!is_twin) kept.push_back(std::move(row));
  }
  const size_t dropped = rows.size() - kept.size();
  rows = std::move(kept);
  return dropped;
}

}  // namespace caravan

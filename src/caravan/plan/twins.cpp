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

auto major_keys(const Recipe& recipe, int num_ranks) {
  return std::tuple(split_text(recipe, plan_batch(recipe, num_ranks).dp), recipe.data_parallel.name(),
                    recipe.memory.recompute.is_none(), is_offload_used(recipe.offload));
}

}  // namespace

size_t drop_twins(std::vector<PlannedLayout>& rows, int num_ranks) {
  constexpr double kSame = 0.01;
  std::vector<PlannedLayout> kept;
  for (PlannedLayout& row : rows) {
    const bool is_twin = std::ranges::any_of(kept, [&](const PlannedLayout& other) {
      return std::abs(row.prediction.seconds / other.prediction.seconds - 1) < kSame &&
             major_keys(row.recipe, num_ranks) == major_keys(other.recipe, num_ranks);
    });
    if (!is_twin) kept.push_back(std::move(row));
  }
  const size_t dropped = rows.size() - kept.size();
  rows = std::move(kept);
  return dropped;
}

}  // namespace caravan

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/caravan/launch/ranks.h"
#include "caravan/recipe/recipe.h"

namespace caravan::app {

/// A recipe with a number of ranks that fits it.
struct CheckedRun {
  Recipe recipe;
  RankPlan ranks;
};

/// Loads a recipe and checks what can be checked without libtorch and without reading data: `train` and `inspect`
/// refuse the same recipes. For ranks started by another launcher only the recipe itself is checked: they first compare
/// their inputs, and name what differs. `is_auto`: the layout is yet to be chosen, and not checked. Throws UsageError
/// or DataError.
CheckedRun check_run(const std::string& recipe, const std::vector<std::string>& overrides, std::optional<int> num_ranks,
                     bool is_auto = false);

/// Throws UsageError for more ranks on this host than most_local_ranks(). `op` names the command.
void check_local_ranks(const RankPlan& plan, const char* op);

}  // namespace caravan::app

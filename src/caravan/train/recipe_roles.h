#pragma once

#include <string_view>

#include "caravan/train/recipe.h"

namespace caravan {

/// Whether the ranks of a run may have different values of a key.
enum class AcrossRanks : uint8_t {
  equal,   ///< no: the numbers or the collectives go by it
  differ,  ///< yes: each host's own affair, or a path whose content is compared instead
};

/// What a resumed run may do with a key.
enum class OnResume : uint8_t {
  shape,     ///< fixed; compared as the model's config, in which 0 is already replaced by the model's own rule
  function,  ///< fixed: the weights mean something else with another value
  history,   ///< fixed once the run has done a step: what went before was computed with it
  content,   ///< a path: may change, its content may not
  listed,    ///< may change; the user is told, since the results differ from those of a run that never stopped
  free,      ///< may change: no result depends on it, except for rounding, or it has a check of its own
};

struct RecipeRole {
  std::string_view key;
  AcrossRanks across_ranks;
  OnResume on_resume;
};

/// The role of a recipe key, from the one table of them. Throws InternalError for a key without.
const RecipeRole& role_of(std::string_view key);

}  // namespace caravan

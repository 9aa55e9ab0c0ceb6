#pragma once

#include <filesystem>
#include <string>

#include "caravan/recipe/recipe.h"

namespace caravan {

/// Throws UsageError if optimizer.points or points_file is given, and the schedule does not follow points. Those in the
/// file of a run are no error: a resumed run may have another schedule.
void refuse_unused_points(const Recipe& recipe, RecipeWriter writer);

/// Replaces optimizer.points by those of optimizer.points_file, if that is given, and forgets the file: so a run keeps
/// the points, ranks compare them, and a resumed run needs no file. A relative path is looked up in the current folder,
/// then in `folder`, that of the recipe. An override of one key wins over the other in the recipe. Throws UsageError,
/// naming file and line.
void read_points_file(Recipe& recipe, const std::filesystem::path& folder);

/// Points from step 0 or 1 have their own warm-up: if optimizer.warmup_steps is not given, it becomes 0.
void choose_warmup(Recipe& recipe);

/// A note if the warm-up hides points, or if choose_warmup() has left it out; "": none.
std::string warmup_note(const Recipe& recipe);

}  // namespace caravan

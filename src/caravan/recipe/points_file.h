#pragma once

#include <filesystem>

#include "caravan/recipe/recipe.h"

namespace caravan {

/// Replaces optimizer.points by those of optimizer.points_file, if that is given, and forgets the file: so a run keeps
/// the points, ranks compare them, and a resumed run needs no file. A relative path is looked up in the current folder,
/// then in `folder`, that of the recipe. An override of one key wins over the other in the recipe. Throws UsageError,
/// naming file and line.
void read_points_file(Recipe& recipe, const std::filesystem::path& folder);

}  // namespace caravan

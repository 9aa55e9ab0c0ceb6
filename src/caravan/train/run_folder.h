#pragma once

#include <filesystem>

#include "caravan/train/recipe.h"

namespace caravan {

/// The folder a training run writes to, made if it is not there.
///   checkpoint.dir given   that folder; if it holds a run already and `resume` is not asked for: UsageError offering
///   --resume not given              runs/<recipe name>-N with the first free N; with `resume` the one of the highest N
/// Throws UsageError for `resume` where there is no run, ResourceError for a folder that cannot be made or written to.
std::filesystem::path choose_run_folder(const Recipe& recipe, bool resume);

/// The newest runs/*-N that holds a checkpoint, or an empty path.
std::filesystem::path newest_run();

}  // namespace caravan

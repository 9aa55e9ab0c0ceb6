#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "caravan/base/system/file_lock.h"
#include "caravan/recipe/recipe.h"

namespace caravan {

/// The folder of a run. While this object lives, no other run can write into it.
struct RunFolder {
  std::filesystem::path path;
  FileLock lock;
  std::vector<std::string> notes;  ///< notes for the user about the choice
};

/// Chooses, creates and locks the folder that a training run writes to.
///   checkpoint.dir given   that folder; with `resume` it must hold a checkpoint, else it must hold no run
///   otherwise              runs/<recipe name>-N: a new one; with `resume` the highest N that holds a checkpoint
/// Throws UsageError if the folder does not fit, if it is locked (naming host and process), or if its path is not
/// UTF-8, which no recipe and no manifest can hold; ResourceError if it cannot be created or written to.
RunFolder open_run_folder(const Recipe& recipe, bool resume);

/// The folder that open_run_folder chooses for a resume, without a look at its checkpoints if it is given; empty if
/// there is none. Neither creates nor locks anything.
std::filesystem::path folder_to_resume(const Recipe& recipe);

/// Throws UsageError as open_run_folder for a new run if checkpoint.dir is given and holds a run already.
void refuse_used_folder(const Recipe& recipe);

/// Throws UsageError if the path of the folder of `recipe` is not UTF-8. Call it first.
void check_run_path(const Recipe& recipe);

/// The newest runs/*-N that holds a checkpoint, or an empty path.
std::filesystem::path newest_run();

}  // namespace caravan

#pragma once

#include <filesystem>

namespace caravan::app {

/// Prints what a run folder or a checkpoint holds and returns the exit code. Throws DataError for a folder that is
/// neither.
int inspect_run(const std::filesystem::path& folder);

}  // namespace caravan::app

#pragma once

#include <filesystem>

namespace caravan {

/// This user's cache folder: CARAVAN_CACHE, else caravan/ in XDG_CACHE_HOME or in ~/.cache, else a folder of this user
/// in the folder for temporary files. It need not exist. Throws UsageError if that last one exists and others may write
/// to it.
std::filesystem::path cache_folder();

}  // namespace caravan

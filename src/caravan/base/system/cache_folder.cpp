#include "caravan/base/system/cache_folder.h"

#include <cstdlib>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

std::filesystem::path environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// A folder inside the world-writable folder for temporary files, if nobody else can have put files into it.
std::filesystem::path temporary_cache() {
  std::filesystem::path folder = std::filesystem::temp_directory_path() / ("caravan-" + std::to_string(::getuid()));
  ::mkdir(folder.c_str(), 0700);
  struct stat status {};
  const bool is_own_folder = ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
                             status.st_uid == ::getuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  if (is_own_folder) return folder;
  throw UsageError({"cache", folder.string(), "is not a folder that this user alone may write to", "",
                    "set HOME, or CARAVAN_CACHE to a folder of your own"});
}

}  // namespace

std::filesystem::path cache_folder() {
  if (const auto given = environment("CARAVAN_CACHE"); !given.empty()) return given;
  if (const auto given = environment("XDG_CACHE_HOME"); !given.empty()) return given / "caravan";
  if (const auto home = environment("HOME"); !home.empty()) return home / ".cache" / "caravan";
  return temporary_cache();
}

}  // namespace caravan

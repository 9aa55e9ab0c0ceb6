#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <unistd.h>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/launch/check_run.h"
#include "apps/caravan/launch/launch.h"
#include "apps/caravan/launch/ranks.h"
#include "caravan/base/error.h"
#include "caravan/base/system/cores.h"

namespace caravan::app {
namespace {

namespace fs = std::filesystem;

bool is_program(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

[[noreturn]] void refuse(const fs::path& program, const std::string& fact, const std::string& action) {
  throw UsageError({"run", program.string(), fact, "", action});
}

[[noreturn]] void refuse_file(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error)) refuse(file, "is not there", "name an executable file, or a program in PATH");
  if (fs::is_directory(file, error)) refuse(file, "is a folder", "name an executable file");
  if (file.extension() == ".py") {
    refuse(file, "is not executable", fmt::format("write caravan run python3 {}", file.string()));
  }
  refuse(file, "is not executable",
         fmt::format("chmod +x {0}, or name its interpreter: caravan run sh {0}", file.string()));
}

/// Searches as a shell does: a name without a slash is in one of the folders of PATH, in which an empty entry is the
/// current folder.
std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (!is_program(name)) refuse_file(name);
    return name;
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path candidate = fs::path(folder.empty() ? "." : folder) / name;
    if (is_program(candidate)) return candidate.string();
  }
  std::error_code error;
  if (is_program(name)) refuse(name, "is not in PATH, but in this folder", "write caravan run ./" + name);
  if (fs::exists(name, error)) refuse_file(name);
  refuse(name, "is not in PATH", "give its path, such as ./" + name);
}

}  // namespace

int run_program(const RunArguments& arguments) {
  const int num_ranks = arguments.ranks.value_or(std::min(num_usable_cores(), 2));
  check_local_ranks({.num_ranks = num_ranks, .is_one_host = true}, "run");
  const std::string program = find_program(arguments.words.front());
  // Otherwise each rank uses all cores. A program that sets a number of threads gets it.
  const int threads = std::max(1, num_usable_cores() / std::max(1, num_ranks));
  ::setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), /*overwrite=*/0);
  return launch({.num_ranks = num_ranks,
                 .program = program,
                 .arguments = std::vector<std::string>(arguments.words.begin() + 1, arguments.words.end()),
                 .log_dir = arguments.log_dir,
                 .is_caravan = false});
}

}  // namespace caravan::app

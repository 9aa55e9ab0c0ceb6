#include "caravan/train/run_folder.h"

#include <cerrno>
#include <charconv>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/file.h"
#include "caravan/checkpoint/manifest.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

const char* const kRuns = "runs";

bool holds_run(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "train.log", error) || !list_checkpoints(folder).empty();
}

/// N of "<name>-N", or 0.
int64_t number_of(const std::string& folder, const std::string& name) {
  if (!folder.starts_with(name + "-")) return 0;
  int64_t number = 0;
  const char* end = folder.data() + folder.size();
  const auto [stop, fault] = std::from_chars(folder.data() + name.size() + 1, end, number);
  return fault == std::errc() && stop == end ? number : 0;
}

int64_t highest_number(const std::string& name) {
  int64_t highest = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(kRuns, error)) {
    highest = std::max(highest, number_of(entry.path().filename().string(), name));
  }
  return highest;
}

void make_writable(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw_file_error("train", folder, "cannot be made", error.value());
  if (::access(folder.c_str(), W_OK | X_OK) != 0) throw_file_error("train", folder, "cannot be written to", errno);
}

}  // namespace

fs::path choose_run_folder(const Recipe& recipe, bool resume) {
  if (!recipe.checkpoint.dir.empty()) {
    const fs::path folder = recipe.checkpoint.dir;
    const bool has_checkpoint = !list_checkpoints(folder).empty();
    const bool has_run = holds_run(folder);
    if (has_run && !resume) {
      throw UsageError({"train", folder.string(), "holds a run already", recipe.where("checkpoint.dir"),
                        has_checkpoint ? "name another folder, or go on with it: train --resume"
                                       : "it ended before its first checkpoint, so --resume has nothing to go on from: "
                                         "remove the folder, or name another"});
    }
    if (resume && !has_checkpoint) {
      throw UsageError(
          {"train", folder.string(), "holds no checkpoint to resume from", recipe.where("checkpoint.dir"),
           has_run ? "remove the folder, and start the run without --resume" : "leave --resume out to start the run"});
    }
    make_writable(folder);
    return folder;
  }
  const int64_t highest = highest_number(recipe.name);
  if (resume) {
    for (int64_t n = highest; n > 0; --n) {
      const fs::path folder = fs::path(kRuns) / fmt::format("{}-{}", recipe.name, n);
      if (!list_checkpoints(folder).empty()) return folder;
    }
    throw UsageError({"train", fmt::format("{}/{}-N", kRuns, recipe.name),
                      "no such run holds a checkpoint to resume from", "looked up from " + fs::current_path().string(),
                      "leave --resume out to start one, or name it: --set checkpoint.dir=DIR"});
  }
  const fs::path folder = fs::path(kRuns) / fmt::format("{}-{}", recipe.name, highest + 1);
  make_writable(folder);
  return folder;
}

fs::path newest_run() {
  fs::path newest;
  fs::file_time_type time = fs::file_time_type::min();
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(kRuns, error)) {
    const auto checkpoints = list_checkpoints(entry.path());
    if (checkpoints.empty()) continue;
    const auto written = fs::last_write_time(checkpoints.back(), error);
    if (!error && written > time) {
      time = written;
      newest = entry.path();
    }
  }
  return newest;
}

}  // namespace caravan

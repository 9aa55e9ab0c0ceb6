#include "caravan/train/folder/run_folder.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/data/unicode/utf8.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/formats/checkpoint/publish.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

const char* const kRuns = "runs";
const char* const kLockName = ".lock";

/// Replaces each byte that is not ASCII by \\xNN, so that a terminal can show the path.
std::string printable(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c >= ' ' && c < 0x7f) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out;
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

/// Creates `folder` and its missing parents, durably.
std::error_code make_folders(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> parents;  // of the missing ones
  for (fs::path at = fs::absolute(folder); at.has_relative_path() && !fs::exists(at, error); at = at.parent_path()) {
    parents.push_back(at.parent_path());
  }
  fs::create_directories(folder, error);
  if (error) return error;
  for (const fs::path& parent : parents) sync_folder(parent, "train");
  return {};
}

void make_writable(const fs::path& folder) {
  const std::error_code error = make_folders(folder);
  if (error) throw_file_error("train", folder, "cannot be made", error.value());
  if (::access(folder.c_str(), W_OK | X_OK) != 0) throw_file_error("train", folder, "cannot be written to", errno);
}

/// "host node7, process 4711, started 2031-05-08 14:03:22 UTC".
std::string description_of_this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 64> time{};
  std::strftime(time.data(), time.size(), "%Y-%m-%d %H:%M:%S UTC", &utc);
  return fmt::format("host {}, process {}, started {}", host.data(), ::getpid(), time.data());
}

RunFolder lock_folder(const fs::path& folder) {
  RunFolder run{
      .path = folder, .lock = FileLock(folder / kLockName, description_of_this_process(), "train"), .notes = {}};
  if (run.lock.is_held()) return run;
  if (!run.lock.is_supported()) {
    run.notes.push_back(fmt::format("the file system of {} has no locks: make sure that no other run uses this folder",
                                    folder.string()));
    return run;
  }
  const std::string& holder = run.lock.holder();
  throw UsageError({"train", folder.string(), "is in use by another run", holder.empty() ? "" : "its owner: " + holder,
                    "wait for that run or stop it, or name another folder: --set checkpoint.dir=DIR"});
}

bool holds_log(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "train.log", error);
}

RunFolder open_given_folder(const Recipe& recipe, bool resume) {
  const fs::path folder = recipe.checkpoint.dir;
  std::error_code error;
  if (resume && !fs::exists(folder, error)) {
    throw UsageError({"train", folder.string(), "holds no checkpoint to resume from", recipe.where("checkpoint.dir"),
                      "leave --resume out to start the run"});
  }
  make_writable(folder);
  RunFolder run = lock_folder(folder);
  restore_checkpoints(folder);
  if (!resume) refuse_used_folder(recipe);
  if (resume && list_checkpoints(folder).empty()) {
    throw UsageError({"train", folder.string(), "holds no checkpoint to resume from", recipe.where("checkpoint.dir"),
                      holds_log(folder) ? "remove the folder, and start the run without --resume"
                                        : "leave --resume out to start the run"});
  }
  return run;
}

fs::path numbered_folder(const Recipe& recipe, int64_t number) {
  return fs::path(kRuns) / fmt::format("{}-{}", recipe.name, number);
}

RunFolder open_newest_folder(const Recipe& recipe) {
  std::vector<std::string> notes;
  for (int64_t n = highest_number(recipe.name); n > 0; --n) {
    const fs::path folder = numbered_folder(recipe, n);
    std::error_code error;
    if (!fs::is_directory(folder, error)) continue;
    if (list_checkpoints(folder).empty()) {
      notes.push_back(folder.string() + " is newer, but holds no checkpoint to resume from: skipped");
      continue;
    }
    RunFolder run = lock_folder(folder);
    restore_checkpoints(folder);
    run.notes.insert(run.notes.begin(), notes.begin(), notes.end());
    return run;
  }
  throw UsageError({"train", fmt::format("{}/{}-N", kRuns, recipe.name),
                    "no such run holds a checkpoint to resume from", "looked up from " + fs::current_path().string(),
                    "leave --resume out to start one, or name it: --set checkpoint.dir=DIR"});
}

/// mkdir fails if the folder exists, so two runs that start at once get different numbers.
RunFolder make_new_folder(const Recipe& recipe) {
  const std::error_code error = make_folders(kRuns);
  for (int64_t n = highest_number(recipe.name) + 1;; ++n) {
    const fs::path folder = numbered_folder(recipe, n);
    if (::mkdir(folder.c_str(), 0777) == 0) {
      sync_folder(kRuns, "train");
      return lock_folder(folder);
    }
    if (errno != EEXIST) throw_file_error("train", folder, "cannot be made", error ? error.value() : errno);
  }
}

}  // namespace

void check_run_path(const Recipe& recipe) {
  const fs::path named = recipe.checkpoint.dir.empty() ? numbered_folder(recipe, 1) : fs::path(recipe.checkpoint.dir);
  const fs::path folder = fs::absolute(named);
  if (utf8_error(folder.string()) == kNoUtf8Error) return;
  throw UsageError({"train", "folder of the run", fmt::format("its path is not UTF-8: {}", printable(folder.string())),
                    recipe.checkpoint.dir.empty() ? "from the names of the recipe and the current folder"
                                                  : recipe.where("checkpoint.dir"),
                    "name another folder: --set checkpoint.dir=DIR"});
}

RunFolder open_run_folder(const Recipe& recipe, bool resume) {
  check_run_path(recipe);
  if (!recipe.checkpoint.dir.empty()) return open_given_folder(recipe, resume);
  return resume ? open_newest_folder(recipe) : make_new_folder(recipe);
}

fs::path folder_to_resume(const Recipe& recipe) {
  if (!recipe.checkpoint.dir.empty()) return recipe.checkpoint.dir;
  for (int64_t n = highest_number(recipe.name); n > 0; --n) {
    fs::path folder = numbered_folder(recipe, n);
    if (!list_checkpoints(folder).empty()) return folder;
  }
  return {};
}

void refuse_used_folder(const Recipe& recipe) {
  const fs::path folder = recipe.checkpoint.dir;
  if (folder.empty()) return;
  const bool has_checkpoint = !list_checkpoints(folder).empty();
  if (!has_checkpoint && !holds_log(folder)) return;
  throw UsageError({"train", folder.string(), "holds a run already", recipe.where("checkpoint.dir"),
                    has_checkpoint ? "name another folder, or resume it: train --resume"
                                   : "it ended before its first checkpoint, so --resume has nothing to start from: "
                                     "remove the folder, or name another"});
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

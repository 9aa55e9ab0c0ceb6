#include "caravan/formats/checkpoint/publish.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <string>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/formats/checkpoint/verify.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWritten = ".tmp";    ///< being written
constexpr const char* kReplaced = ".old";   ///< complete; its successor is about to take its name
constexpr const char* kPruned = ".pruned";  ///< being deleted
constexpr const char* kBest = "best";       ///< a link to the checkpoint of the lowest validation loss

/// run/.step_000005<suffix> for run/step_000005.
fs::path hidden(const fs::path& checkpoint, const char* suffix) {
  return checkpoint.parent_path() / ("." + checkpoint.filename().string() + suffix);
}

/// The hidden folders of a run that end with `suffix`.
std::vector<fs::path> hidden_folders(const fs::path& run, std::string_view suffix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".step_") && name.ends_with(suffix)) found.push_back(entry.path());
  }
  return found;
}

void remove_folder(const fs::path& folder) {
  std::error_code error;  // what cannot be removed now is removed by the next save
  fs::remove_all(folder, error);
}

bool is_missing(const fs::path& path) {
  std::error_code error;
  return !fs::exists(fs::symlink_status(path, error));
}

/// If the file system cannot exchange two names: for a moment neither folder has the name, and restore_checkpoints
/// restores the old one if the process is killed then.
void replace_in_two_steps(const fs::path& aside, const fs::path& target, const fs::path& old) {
  remove_folder(old);
  rename_durably(target, old, "checkpoint");
  rename_durably(aside, target, "checkpoint");
}

/// For imported weights, or a run without a step.
bool has_no_training(const fs::path& checkpoint) {
  try {
    return Manifest::read(checkpoint).info.optimizer_steps == 0;
  } catch (const DataError&) {
    return true;  // unknown content is kept
  }
}

}  // namespace

fs::path make_checkpoint_aside(const fs::path& run, int64_t step) {
  const fs::path aside = hidden(run / checkpoint_name(step), kWritten);
  remove_folder(aside);
  create_folders("checkpoint", aside, "cannot be made");
  return aside;
}

void publish_checkpoint(const fs::path& aside, const fs::path& target) {
  sync_folder(aside, "checkpoint");
  if (is_missing(target)) return rename_durably(aside, target, "checkpoint");
  const fs::path old = hidden(target, kReplaced);
  if (::renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    sync_folder(target.parent_path(), "checkpoint");
    return remove_folder(aside);
  }
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) {
    throw_file_error("checkpoint", target, "cannot be replaced", errno);
  }
  replace_in_two_steps(aside, target, old);
  remove_folder(old);
}

void mark_best_checkpoint(const fs::path& run, int64_t step) {
  const fs::path aside = run / ".best";
  std::error_code error;
  fs::remove(aside, error);
  fs::create_directory_symlink(checkpoint_name(step), aside, error);
  if (error) throw_file_error("checkpoint", aside, "cannot be made", error.value());
  rename_durably(aside, run / kBest, "checkpoint");
}

int64_t best_checkpoint_step(const fs::path& run) {
  std::error_code error;
  const fs::path target = fs::read_symlink(run / kBest, error);
  return error || is_missing(run / target / kManifestName) ? -1 : step_of(target);
}

void prune_checkpoints(const fs::path& run, int64_t keep) {
  restore_checkpoints(run);
  for (const fs::path& folder : hidden_folders(run, "")) remove_folder(folder);
  if (keep == 0) return;
  const int64_t best = best_checkpoint_step(run);
  const auto all = list_checkpoints(run);
  for (size_t i = 0; i + static_cast<size_t>(keep) < all.size(); ++i) {
    if (has_no_training(all[i]) || step_of(all[i]) == best) continue;
    // Durable before the first file is deleted: after a power failure a checkpoint must not reappear in part.
    rename_durably(all[i], hidden(all[i], kPruned), "checkpoint");
    remove_folder(hidden(all[i], kPruned));
  }
}

void restore_checkpoints(const fs::path& run) {
  for (const fs::path& old : hidden_folders(run, kReplaced)) {
    std::string name = old.filename().string().substr(1);
    name.resize(name.size() - std::string_view(kReplaced).size());
    if (is_missing(run / name)) rename_durably(old, run / name, "checkpoint");
  }
}

std::vector<fs::path> abandon_later_checkpoints(const fs::path& run, int64_t step) {
  std::vector<fs::path> renamed;
  for (const fs::path& later : list_checkpoints(run)) {
    if (step_of(later) <= step) continue;
    fs::path name = later;
    name += ".abandoned";
    for (int n = 2; !is_missing(name); ++n) {
      name = later;
      name += fmt::format(".abandoned-{}", n);
    }
    rename_durably(later, name, "checkpoint");
    renamed.push_back(name);
  }
  return renamed;
}

void verify_checkpoint(const fs::path& folder) {
  for (const auto& [name, file] : Manifest::read(folder).files) verify_file(folder, name, file);
}

fs::path newest_whole_checkpoint(const fs::path& run, int64_t step) {
  auto all = list_checkpoints(run);
  for (auto candidate = all.rbegin(); candidate != all.rend(); ++candidate) {
    if (step_of(*candidate) >= step) continue;
    try {
      verify_checkpoint(*candidate);
      return *candidate;
    } catch (const DataError&) {
      // Damaged as well.
    }
  }
  return {};
}

void refuse_damaged(const fs::path& folder, const DataError& error) {
  try {
    verify_checkpoint(folder);
  } catch (const DataError&) {
    const fs::path whole = newest_whole_checkpoint(folder.parent_path(), step_of(folder));
    ErrorText text = error.text();
    text.action = whole.empty() ? "the run holds no earlier checkpoint that is intact: start a new run"
                                : fmt::format(
                                      "this checkpoint is damaged; resume from the newest intact one: train "
                                      "--resume-from {}",
                                      whole.filename().string());
    throw DataError(std::move(text));
  }
  throw DataError(error);
}

}  // namespace caravan

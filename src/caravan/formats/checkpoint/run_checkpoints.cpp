#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/formats/checkpoint/manifest.h"

namespace caravan {

namespace fs = std::filesystem;

std::string checkpoint_name(int64_t step) { return fmt::format("step_{:06}", step); }

int64_t step_of(const fs::path& checkpoint) {
  const std::string name = checkpoint.filename().string();
  constexpr std::string_view kPrefix = "step_";
  if (!name.starts_with(kPrefix)) return -1;
  int64_t step = -1;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  return step >= 0 && name == checkpoint_name(step) ? step : -1;
}

std::vector<fs::path> list_checkpoints(const fs::path& run) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run, error)) {
    if (step_of(entry.path()) >= 0 && fs::exists(entry.path() / kManifestName, error)) found.push_back(entry.path());
  }
  std::ranges::sort(found, {}, step_of);
  return found;
}

fs::path find_checkpoint(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path / kManifestName, error)) return path;
  const auto all = list_checkpoints(path);
  if (all.empty()) {
    const fs::directory_iterator opened(path, error);
    if (error == std::errc::permission_denied) throw_file_error("checkpoint", path, "cannot be read", error.value());
    const bool is_file = fs::is_regular_file(path, error);
    throw DataError(
        {"checkpoint", path.string(),
         is_file                   ? "is a file, not a folder"
         : fs::exists(path, error) ? "holds no complete checkpoint (step_NNNNNN with a manifest.json)"
                                   : "is not there",
         "", "name a run, a checkpoint or, for its model, a Hugging Face folder (with a config.json) on this host"});
  }
  return all.back();
}

}  // namespace caravan

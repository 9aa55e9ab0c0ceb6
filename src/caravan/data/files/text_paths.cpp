#include "caravan/data/files/text_paths.h"

#include <algorithm>
#include <array>
#include <glob.h>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/data/files/table.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 6> kEndings{".txt", ".text", ".md", ".json", ".jsonl", ".ndjson"};

bool has_text_name(const fs::path& file) {
  fs::path name = file.filename();
  if (name.extension() == ".gz" || name.extension() == ".zst") name = name.stem();
  return std::ranges::find(kEndings, name.extension().string()) != kEndings.end();
}

[[noreturn]] void refuse_tables(const fs::path& folder, const fs::path& table) {
  throw DataError({.op = "data",
                   .subject = folder.string(),
                   .fact = fmt::format("has tables, such as {}, which are not read", table.filename().string()),
                   .action = kWithoutTables});
}

/// A DatasetDict of Hugging Face's datasets has a folder for each split; not all of them are for training.
void refuse_splits(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / "dataset_dict.json", error)) return;
  std::vector<std::string> splits;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.is_directory(error)) splits.push_back(entry.path().filename().string());
  }
  std::ranges::sort(splits);
  throw DataError({.op = "data",
                   .subject = folder.string(),
                   .fact = fmt::format("has a folder for each split: {}", fmt::join(splits, ", ")),
                   .action = fmt::format("name that of one split, such as {}/{}", folder.string(),
                                         splits.empty() ? "train" : nearest("train", splits))});
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::vector<fs::path> tables;
  std::error_code error;
  refuse_splits(folder);
  fs::recursive_directory_iterator at(folder, fs::directory_options::follow_directory_symlink, error);
  for (const fs::recursive_directory_iterator end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->path().filename().string().starts_with('.')) {
      if (at->is_directory(ignored)) at.disable_recursion_pending();
      continue;
    }
    if (!at->is_regular_file(ignored)) continue;
    if (has_table_name(at->path())) tables.push_back(at->path());
    if (has_text_name(at->path())) found.push_back(at->path());
  }
  if (error) {
    throw ResourceError({"data", folder.string(), "cannot be read: " + error.message(), "", "make it readable"});
  }
  if (!tables.empty() && !reads_tables()) refuse_tables(folder, tables.front());
  if (!tables.empty()) found = std::move(tables);  // other files beside them describe them
  if (found.empty()) {
    throw DataError({.op = "data",
                     .subject = folder.string(),
                     .fact = fmt::format("is a folder without files that end in {} (or these with .gz, .zst)",
                                         fmt::join(kEndings, ", ")),
                     .action = fmt::format("name its files, or a pattern: {}", (folder / "*").string())});
  }
  std::ranges::sort(found);
  return found;
}

std::vector<fs::path> matches_of(const std::string& pattern) {
  glob_t matches{};
  std::vector<fs::path> found;
  if (glob(pattern.c_str(), 0, nullptr, &matches) == 0) {
    for (size_t i = 0; i < matches.gl_pathc; ++i) found.emplace_back(matches.gl_pathv[i]);
  }
  globfree(&matches);
  return found;
}

}  // namespace

bool is_pattern(std::string_view path) { return path.find_first_of("*?[") != std::string_view::npos; }

std::vector<fs::path> text_files(const fs::path& path) {
  std::error_code error;
  std::vector<fs::path> named{path};
  if (!fs::exists(path, error)) named = is_pattern(path.string()) ? matches_of(path.string()) : std::vector<fs::path>{};
  std::vector<fs::path> files;
  for (const fs::path& one : named) {
    if (!fs::is_directory(one, error)) {
      files.push_back(one);
    } else {
      for (fs::path& file : files_in(one)) files.push_back(std::move(file));
    }
  }
  return files;
}

}  // namespace caravan

#include <vector>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/data/files/text_paths.h"
#include "caravan/train/dataset/dataset_parts.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

/// The folders in which `path` is looked up.
std::vector<fs::path> starts_of(const std::string& path, const DataFolders& folders) {
  std::error_code error;
  std::vector<fs::path> starts{fs::current_path(error)};
  for (const fs::path& folder : {folders.recipe, folders.home}) {
    if (!folder.empty() && !fs::path(path).is_absolute()) starts.push_back(folder);
  }
  return starts;
}

[[noreturn]] void refuse_missing(const std::string& path, const DataFolders& folders, const char* fact) {
  std::vector<std::string> looked_up;
  for (const fs::path& start : starts_of(path, folders)) looked_up.push_back(start.string());
  throw DataError({"data", path, fact, "looked up from " + join(looked_up), "name a file that exists"});
}

/// The files of a text, and a path that is valid from any folder.
struct FoundText {
  std::vector<fs::path> files;
  fs::path path;
};

FoundText find_text(const std::string& path, const DataFolders& folders) {
  std::error_code error;
  for (const fs::path& start : starts_of(path, folders)) {
    const fs::path absolute = fs::absolute(start / path, error).lexically_normal();
    std::vector<fs::path> files = text_files(absolute);
    if (!files.empty()) return {std::move(files), absolute};
  }
  refuse_missing(path, folders, is_pattern(path) ? "no file matches" : "no such file");
}

}  // namespace

fs::path find_file(const std::string& path, const DataFolders& folders) {
  std::error_code error;
  for (const fs::path& start : starts_of(path, folders)) {
    const fs::path file = fs::absolute(start / path, error).lexically_normal();
    if (fs::exists(file, error)) return file;
  }
  refuse_missing(path, folders, "no such file");
}

std::vector<fs::path> find_texts(const std::string& path, const DataFolders& folders) {
  return find_text(path, folders).files;
}

std::vector<std::string> text_paths(const Recipe::Data& data) {
  if (data.sources.empty()) return data.text;
  std::vector<std::string> paths;
  for (const DataSource& source : data.sources) paths.push_back(source.path);
  return paths;
}

void resolve_files(Recipe::Data& data, const DataFolders& folders) {
  const auto resolve = [](std::string& path, const auto& find) {
    fs::path found;
    try {
      found = find(path);
    } catch (const DataError&) {
      return;  // reported where the file is opened
    }
    if (!is_utf8(found.string())) {
      throw UsageError({"recipe", found.string(), "the path is not UTF-8, and recipes are", "",
                        "rename the folder or the file, or give it a link in UTF-8"});
    }
    path = found.string();
  };
  const auto text = [&](const std::string& path) { return find_text(path, folders).path; };
  for (std::string& path : data.text) resolve(path, text);
  for (DataSource& source : data.sources) resolve(source.path, text);
  for (std::string& path : data.validation) resolve(path, text);
  if (!data.chat_template.empty()) {
    resolve(data.chat_template, [&](const std::string& path) { return find_file(path, folders); });
  }
  if (data.tokenizer.empty() || data.tokenizer == "bytes") return;
  resolve(data.tokenizer, [&](const std::string& path) { return find_file(path, folders); });
}

std::vector<fs::path> find_all_texts(const std::vector<std::string>& paths, const DataFolders& folders) {
  std::vector<fs::path> files;
  for (const std::string& path : paths) {
    for (fs::path& file : find_texts(path, folders)) files.push_back(std::move(file));
  }
  return files;
}

std::vector<TrainPaths> train_paths(const Recipe::Data& data) {
  if (data.sources.empty()) return {{.paths = data.text, .name = join(data.text), .weight = 1}};
  std::vector<TrainPaths> all;
  for (const DataSource& source : data.sources) {
    all.push_back({.paths = {source.path}, .name = source.path, .weight = source.weight});
  }
  return all;
}

}  // namespace caravan

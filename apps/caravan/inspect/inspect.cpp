#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/inspect_run.h"
#include "apps/caravan/launch/check_run.h"
#include "apps/caravan/launch/ranks.h"
#include "apps/caravan/options/vocabulary.h"
#include "caravan/base/error.h"
#include "caravan/data/files/corpus.h"

namespace caravan::app {
namespace {

/// `train` opens the texts, so a text that it would refuse is refused here.
void check_text(const Recipe& recipe) {
  const DataFolders folders = data_folders(recipe.folder);
  std::vector<std::string> paths = text_paths(recipe.data);
  paths.insert(paths.end(), recipe.data.validation.begin(), recipe.data.validation.end());
  std::vector<std::filesystem::path> files;
  for (const std::string& path : paths) {
    for (std::filesystem::path& file : find_texts(path, folders)) files.push_back(std::move(file));
  }
  const Corpus corpus(files, folders.cache, text_format(recipe.data, folders));
}

void refuse_recipe_options(const InspectArguments& arguments) {
  const char* option = arguments.ranks                ? "--ranks"
                       : arguments.schedule           ? "--schedule"
                       : arguments.recipe_alone       ? "--recipe"
                       : arguments.per_host > 0       ? "--per-host"
                       : arguments.memory_gib > 0     ? "--memory"
                       : !arguments.overrides.empty() ? "--set"
                                                      : nullptr;
  if (option == nullptr) return;
  throw UsageError({"inspect", option, "applies to a recipe, not to a folder", "",
                    fmt::format("inspect {}", (std::filesystem::path(arguments.recipe) / "recipe.toml").string())});
}

}  // namespace

std::optional<int> inspect(const InspectArguments& arguments) {
  if (!arguments.flight_folder.empty()) return inspect_flight(arguments.flight_folder);
  std::error_code error;
  if (std::filesystem::is_directory(arguments.recipe, error)) {
    refuse_recipe_options(arguments);
    return inspect_run(arguments.recipe);
  }
  const Recipe recipe = check_run(arguments.recipe, arguments.overrides, arguments.ranks).recipe;
  if (!arguments.layouts && !arguments.schedule) check_text(recipe);
  vocabulary_of(recipe);
  if (!arguments.recipe_alone) return std::nullopt;
  fmt::print("{}", to_toml(recipe));
  return 0;
}

}  // namespace caravan::app

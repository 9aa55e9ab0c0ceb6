#include "apps/caravan/launch/check_run.h"

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends.h"
#include "caravan/recipe/recipe_key.h"
#include "caravan/train/dataset/dataset.h"

namespace caravan::app {
namespace {

void check_algorithms(const Recipe& recipe) {
  const bool shares_memory = recipe.comm.backend == "shm" || recipe.comm.backend == "thread";
  if (!shares_memory || recipe.comm.algorithms.empty()) return;
  throw UsageError({"recipe", "comm.algorithms",
                    fmt::format("has no effect: {} does not use messages", recipe.comm.backend),
                    recipe.where("comm.algorithms"), "leave it out, or set comm.backend = \"gloo\""});
}

void check_backend(const Recipe& recipe) {
  const std::string& backend = recipe.comm.backend;
  if (const auto missing = missing_backend(backend)) {
    throw UsageError({"recipe", "comm.backend", fmt::format("{} is {}", to_toml(backend), missing->fact),
                      recipe.where("comm.backend"), missing->action});
  }
}

}  // namespace

void check_local_ranks(const RankPlan& plan, const char* op) {
  const int most = most_local_ranks();
  if (!plan.is_one_host || plan.num_ranks <= most) return;
  throw UsageError({op, "ranks", fmt::format("{} on one host", plan.num_ranks), "",
                    fmt::format("use {} or fewer, or start them on more hosts", most)});
}

CheckedRun check_run(const std::string& recipe, const std::vector<std::string>& overrides, std::optional<int> num_ranks,
                     bool is_auto) {
  CheckedRun run{.recipe = load_recipe(recipe, overrides), .ranks = {}};
  check_algorithms(run.recipe);
  run.ranks = is_auto ? plan_auto_ranks(run.recipe, num_ranks) : plan_ranks(run.recipe, num_ranks);
  if (!run.ranks.is_one_host) return run;
  check_backend(run.recipe);
  if (!is_auto) plan_batch(run.recipe, run.ranks.num_ranks);
  const DataFolders folders = data_folders(run.recipe.folder);
  for (const std::string& text : text_paths(run.recipe.data)) find_texts(text, folders);
  for (const std::string& text : run.recipe.data.validation) find_texts(text, folders);
  const std::string& tokenizer = run.recipe.data.tokenizer;
  if (!tokenizer.empty() && tokenizer != "bytes") find_file(tokenizer, folders);
  return run;
}

}  // namespace caravan::app

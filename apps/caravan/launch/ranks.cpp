#include "apps/caravan/launch/ranks.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/cache_folder.h"
#include "caravan/base/system/cores.h"
#include "caravan/base/text.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/prove/proof_recipe.h"
#include "caravan/recipe/layout.h"

namespace caravan::app {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// The repository that the program was built in, which has the default text. torchrun and mpirun start the program
/// itself, and not the script that knows where it lies.
std::filesystem::path home_folder() {
  const std::string given = environment("CARAVAN_HOME");
  if (!given.empty()) return given;
  std::error_code error;
  std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  constexpr int kMostUp = 4;  // build/PRESET/bin
  for (int up = 0; up < kMostUp && folder.has_relative_path(); ++up, folder = folder.parent_path()) {
    for (const std::string& text : Recipe().data.text) {
      if (std::filesystem::exists(folder / text, error)) return folder;
    }
  }
  return {};
}

constexpr int64_t kDefaultCacheBytes = int64_t{32} << 30;

/// CARAVAN_CACHE_BYTES: "500000000", "500M", "20G"; "0" is no limit.
std::optional<int64_t> cache_limit_bytes() {
  const std::string text = environment("CARAVAN_CACHE_BYTES");
  if (text.empty()) return kDefaultCacheBytes;
  const std::optional<int64_t> limit = parse_bytes(text);
  if (!limit) {
    throw UsageError({"environment", "CARAVAN_CACHE_BYTES", "'" + text + "' is not a size", "",
                      "use a number of bytes, or one followed by K, M, G or T: 20G; 0: no limit"});
  }
  return *limit > 0 ? limit : std::nullopt;
}

/// The plan for ranks started by another launcher, if there is one. Refuses an `asked` that contradicts it.
std::optional<RankPlan> plan_of_environment(std::optional<int> asked) {
  if (asked && *asked < 1) {
    throw UsageError(
        {"command line", "--ranks", fmt::format("{} ranks cannot be started", *asked), "", "use 1 or more"});
  }
  const RankInfo info = RankInfo::from_environment();
  if (environment("RANK").empty() && !info.by_mpirun) return std::nullopt;
  if (asked && *asked != info.world_size) {
    throw UsageError({"command line", "--ranks",
                      fmt::format("{} ranks, but WORLD_SIZE in the environment is {}", *asked, info.world_size), "",
                      "leave --ranks out: the launcher has chosen the number"});
  }
  return RankPlan{info.world_size, true, false};
}

}  // namespace

int most_local_ranks() {
  constexpr int kMostPerCore = 32;
  return kMostPerCore * num_usable_cores();
}

RankPlan plan_ranks(const Recipe& recipe, std::optional<int> asked) {
  if (const auto started = plan_of_environment(asked)) {
    mesh_axes(recipe, started->num_ranks);
    return *started;
  }
  const int from_recipe = recipe_ranks(recipe);
  const int default_ranks = from_recipe > 0 ? from_recipe : std::min(num_usable_cores(), 2);
  const int num_ranks = asked.value_or(default_ranks);
  mesh_axes(recipe, num_ranks);
  return {num_ranks, num_ranks == 1 || recipe.comm.backend == "thread", true};
}

RankPlan plan_auto_ranks(const Recipe& recipe, std::optional<int> asked) {
  Recipe open = recipe;
  copy_layout(Recipe(), open);
  const int from_recipe = recipe_ranks(recipe);
  return plan_ranks(open, asked || from_recipe == 0 || plan_of_environment(asked) ? asked : std::optional(from_recipe));
}

RankPlan plan_proof(const Recipe& recipe) { return plan_ranks(proof_recipe(recipe), std::nullopt); }

RankPlan plan_ranks(std::optional<int> asked, const std::string& backend, int default_ranks) {
  if (const auto started = plan_of_environment(asked)) return *started;
  const int num_ranks = asked.value_or(default_ranks);
  return {num_ranks, num_ranks == 1 || backend == "thread", true};
}

int threads_per_rank(const Recipe& recipe, int ranks_on_host) {
  if (recipe.comm.threads_per_rank > 0) return static_cast<int>(recipe.comm.threads_per_rank);
  return std::max(1, num_usable_cores() / std::max(1, ranks_on_host));
}

int planned_ranks_per_host(int num_ranks, int per_host) {
  return per_host > 0 ? per_host : num_ranks <= most_local_ranks() ? num_ranks : 0;
}

DataFolders data_folders(const std::filesystem::path& recipe) {
  return {.home = home_folder(), .recipe = recipe, .cache = cache_folder(), .cache_limit_bytes = cache_limit_bytes()};
}

}  // namespace caravan::app

#include "apps/caravan/ranks.h"

#include <algorithm>
#include <cstdlib>
#include <sched.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/rendezvous.h"

namespace caravan::app {
namespace {

/// The cores this process may run on: fewer than the host's in a container or under taskset.
int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1U, std::thread::hardware_concurrency());
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// The plan of ranks that somebody else started; nothing if nobody did. Refuses an `asked` that does not fit.
std::optional<RankPlan> plan_of_environment(std::optional<int> asked) {
  if (asked && *asked < 1) {
    throw UsageError({"command line", "--ranks", fmt::format("{} is no number of ranks", *asked), "", "use 1 or more"});
  }
  const RankInfo info = RankInfo::from_environment();
  if (environment("RANK").empty() && !info.by_mpirun) return std::nullopt;
  if (asked && *asked != info.world_size) {
    throw UsageError({"command line", "--ranks",
                      fmt::format("{} ranks, but the environment says WORLD_SIZE {}", *asked, info.world_size), "",
                      "leave --ranks out: whoever started this rank has chosen"});
  }
  return RankPlan{info.world_size, true, false};
}

}  // namespace

int most_local_ranks() {
  constexpr int kMostPerCore = 32;
  return kMostPerCore * usable_cores();
}

RankPlan plan_ranks(const Recipe& recipe, std::optional<int> asked) {
  if (const auto started = plan_of_environment(asked)) {
    mesh_axes(recipe, started->num_ranks);
    return *started;
  }
  const int from_recipe = recipe_ranks(recipe);
  const int default_ranks = from_recipe > 0 ? from_recipe : std::min(usable_cores(), 2);
  const int num_ranks = asked.value_or(default_ranks);
  mesh_axes(recipe, num_ranks);
  return {num_ranks, num_ranks == 1 || recipe.comm.backend == "thread", true};
}

RankPlan plan_ranks(std::optional<int> asked, const std::string& backend) {
  if (const auto started = plan_of_environment(asked)) return *started;
  const int num_ranks = asked.value_or(2);
  return {num_ranks, num_ranks == 1 || backend == "thread", true};
}

int threads_per_rank(const Recipe& recipe, int ranks_on_host) {
  if (recipe.comm.threads_per_rank > 0) return static_cast<int>(recipe.comm.threads_per_rank);
  return std::max(1, usable_cores() / std::max(1, ranks_on_host));
}

DataFolders data_folders(const std::filesystem::path& recipe) {
  DataFolders folders{.home = environment("CARAVAN_HOME"), .recipe = recipe, .cache = environment("CARAVAN_CACHE")};
  if (folders.cache.empty() && !environment("XDG_CACHE_HOME").empty()) {
    folders.cache = std::filesystem::path(environment("XDG_CACHE_HOME")) / "caravan";
  }
  if (folders.cache.empty() && !environment("HOME").empty()) {
    folders.cache = std::filesystem::path(environment("HOME")) / ".cache" / "caravan";
  }
  if (folders.cache.empty()) {
    folders.cache = std::filesystem::temp_directory_path() / fmt::format("caravan-{}", ::getuid());
  }
  return folders;
}

}  // namespace caravan::app

#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "caravan/recipe/recipe.h"
#include "caravan/train/dataset/dataset.h"

namespace caravan::app {

/// The number of ranks of a job, and who starts them.
struct RankPlan {
  int num_ranks = 1;
  bool is_one_process = false;  ///< one rank, ranks as threads, or a rank that another launcher (torchrun) started
  bool is_one_host = false;     ///< no other launcher: all ranks are started here
};

/// `asked`: --ranks. Default: the product of the recipe's mesh, else 2 (1 on a single core); under torchrun its
/// WORLD_SIZE. Throws UsageError for a number below 1 or one that contradicts the recipe or the environment.
RankPlan plan_ranks(const Recipe& recipe, std::optional<int> asked);

/// The same where the layout of the recipe is yet to be chosen (train --auto): only its number of ranks counts.
RankPlan plan_auto_ranks(const Recipe& recipe, std::optional<int> asked);

/// The same for `prove`: the ranks of proof_recipe(recipe).
RankPlan plan_proof(const Recipe& recipe);

/// The same for a command without a recipe over back-end `backend`.
RankPlan plan_ranks(std::optional<int> asked, const std::string& backend, int default_ranks = 2);

/// The largest number of ranks that may be started on this host: more would be a typing error that could bring it down.
int most_local_ranks();

/// Compute threads of each of `ranks_on_host` ranks: the recipe's number, else an equal share of the cores.
int threads_per_rank(const Recipe& recipe, int ranks_on_host);
/// Ranks per host in a plan: `per_host`, or if that is 0 all of them, if that many can be started here. Else 0: each
/// has its own host.
int planned_ranks_per_host(int num_ranks, int per_host = 0);

/// CARAVAN_HOME, and the cache: CARAVAN_CACHE, else caravan/ in XDG_CACHE_HOME or ~/.cache, else a folder of this user
/// alone in that for temporary files. Its limit is CARAVAN_CACHE_BYTES, else 32 GiB. `recipe`: the folder of the
/// recipe, if there is one. Throws UsageError for a limit that is not a size, or a temporary folder that others may
/// write to.
DataFolders data_folders(const std::filesystem::path& recipe = {});

}  // namespace caravan::app

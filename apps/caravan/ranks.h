#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "caravan/train/dataset.h"
#include "caravan/train/recipe.h"

namespace caravan::app {

/// How many ranks a training run has, and whether this process is or becomes all or one of them.
struct RankPlan {
  int num_ranks = 1;
  bool is_one_process = false;  ///< one rank, ranks as threads, or ranks that somebody else started (torchrun)
  bool is_one_host = false;     ///< all ranks are started here, not by somebody else
};

/// `asked`: --ranks. Without it the product of the recipe's mesh, else 2 (1 on one core); under torchrun its
/// WORLD_SIZE. Throws UsageError for a number below 1, or one that does not fit the recipe or the environment.
RankPlan plan_ranks(const Recipe& recipe, std::optional<int> asked);

/// The same for a command without a recipe over back-end `backend`: 2 ranks if nobody says how many.
RankPlan plan_ranks(std::optional<int> asked, const std::string& backend);

/// The most ranks that are started on this host: more is a slip of the finger that would bring it down.
int most_local_ranks();

/// Threads for the arithmetic of each of `ranks_on_host`: what the recipe says, else the cores of the host shared out.
int threads_per_rank(const Recipe& recipe, int ranks_on_host);

/// CARAVAN_HOME; and CARAVAN_CACHE, else caravan/ in XDG_CACHE_HOME or ~/.cache, else in the folder for temporary
/// files.
/// `recipe`: the folder of the recipe, if there is one.
DataFolders data_folders(const std::filesystem::path& recipe = {});

}  // namespace caravan::app

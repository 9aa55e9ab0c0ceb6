#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "caravan/comm/communicator.h"
#include "caravan/recipe/recipe.h"
#include "caravan/train/folder/plan_record.h"

namespace caravan {

struct AutoOptions {
  bool plans = false;  ///< --auto; else only a resumed run goes on with a recorded layout
  bool resumes = false;
  int threads = 1;                                ///< compute threads of this rank
  std::string host{};                             ///< of this rank: equal for ranks of one host, different for others
  std::filesystem::path cache{};                  ///< of measured hardware
  std::function<int64_t()> vocabulary{};          ///< of the model; called on rank 0
  double measure_seconds = 10;                    ///< at most
  double search_seconds = 20;                     ///< of processor time, see SearchOptions
  std::function<void(const std::string&)> say{};  ///< a line for the user; on rank 0
};

struct AutoLayout {
  Recipe recipe;                       ///< with the layout
  std::optional<PlanRecord> record{};  ///< what chose it; nothing: the layout is that of the recipe
};

/// The layout of a run on the ranks of `world`: of the plan in its folder, if the run is resumed on as many ranks; else
/// with `plans` the best that a search finds for the hardware of these ranks, which it measures (job_hardware); else
/// that of the recipe. Keys of the layout that --set gives stay as they are: a recorded layout with other values of
/// them is not used. Every rank calls it with the same recipe; all get the same layout. Rank 0 searches while the
/// others wait.
///
/// Throws UsageError if the gradient of the recipe is not that of one process or no layout is legal on so many ranks,
/// ResourceError if none fits, DataError for a damaged plan; and as job_hardware.
AutoLayout choose_layout(const Recipe& recipe, Communicator& world, const AutoOptions& options);

}  // namespace caravan

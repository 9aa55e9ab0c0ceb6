#include <csignal>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/commands/progress_bar.h"
#include "apps/caravan/inspect/recipe_ranks.h"
#include "caravan/base/runtime.h"
#include "caravan/base/system/stop_signal.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/train/agreement.h"
#include "caravan/train/train.h"

namespace caravan::app {

int train(const TrainArguments& arguments) {
  Recipe recipe = load_recipe(arguments.recipe, arguments.overrides);
  resolve_files(recipe.data, data_folders(recipe.folder));
  const RankPlan plan = plan_ranks(recipe, arguments.ranks);
  const RankInfo info = RankInfo::from_environment();
  std::signal(SIGPIPE, SIG_IGN);  // a closed output does not end training: see ProgressBar
  // A process that waits for other ranks has nothing to save: until they have met, a signal ends it.
  std::optional<StopSignal> signal;
  if (info.world_size == 1) signal.emplace(StopSignal::Second::ends_at_once);
  const Runtime runtime({.intra_op_threads = threads_per_rank(recipe, plan)});
  const TrainOptions options{.recipe = recipe,
                             .folders = data_folders(recipe.folder),
                             .resume = arguments.resume,
                             .resume_from = arguments.resume_from,
                             .stop_after = arguments.stop_after,
                             .dump_dir = arguments.dump_dir,
                             .dump_steps = arguments.dump_steps,
                             .trace_file = arguments.trace_file,
                             .trace_steps = arguments.trace_steps,
                             .stop_requested = [&signal] { return signal->requested(); }};
  run_recipe_ranks(recipe, plan, start_facts(recipe, options), [&](const std::shared_ptr<Communicator>& world) {
    // On a second signal the launcher itself kills its ranks.
    if (!signal) signal.emplace(StopSignal::Second::is_ignored);
    std::unique_ptr<ProgressBar> progress;
    if (world->rank() == 0) progress = std::make_unique<ProgressBar>();
    TrainOptions own = options;
    own.observer = progress.get();
    caravan::train(own, world);
    if (progress && arguments.stop_after && *arguments.stop_after < recipe.train.steps) {
      progress->line(fmt::format("stopped   after {} of {} steps; continue with --resume", *arguments.stop_after,
                                 recipe.train.steps));
    }
  });
  return 0;
}

}  // namespace caravan::app

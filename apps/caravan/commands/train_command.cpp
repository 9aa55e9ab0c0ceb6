#include <csignal>
#include <memory>
#include <mutex>
#include <optional>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/commands/progress_bar.h"
#include "apps/caravan/inspect/recipe_ranks.h"
#include "apps/caravan/options/vocabulary.h"
#include "caravan/base/runtime.h"
#include "caravan/base/system/stop_signal.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/plan/auto_layout.h"
#include "caravan/train/agreement.h"
#include "caravan/train/dataset/prepare.h"
#include "caravan/train/train.h"

namespace caravan::app {
namespace {

/// The options with the layout of this run: what --auto chooses or has chosen, or that of the recipe.
TrainOptions with_layout(const TrainOptions& options, int threads, Communicator& world, ProgressBar* progress) {
  TrainOptions own = options;
  if (!own.plans && !own.resumes()) return own;
  AutoLayout chosen = choose_layout(options.recipe, world,
                                    {.plans = options.plans,
                                     .resumes = options.resumes(),
                                     .threads = threads,
                                     .host = host_name(),
                                     .cache = options.folders.cache,
                                     .vocabulary = [&] { return vocabulary_of(options.recipe).size; },
                                     .say = [progress](const std::string& text) { progress->line(text); }});
  own.recipe = std::move(chosen.recipe);
  own.plan = std::move(chosen.record);
  return own;
}

}  // namespace

int train(const TrainArguments& arguments) {
  Recipe recipe = load_recipe(arguments.recipe, arguments.overrides);
  resolve_files(recipe.data, data_folders(recipe.folder));
  const RankPlan plan =
      arguments.plans ? plan_auto_ranks(recipe, arguments.ranks) : plan_ranks(recipe, arguments.ranks);
  const RankInfo info = RankInfo::from_environment();
  std::signal(SIGPIPE, SIG_IGN);  // a closed output does not end training: see ProgressBar
  // A process that waits for other ranks has nothing to save: until they have met, a signal ends it.
  // So does one while a layout is chosen.
  std::optional<StopSignal> signal;
  std::once_flag has_met;  // ranks may be threads
  const auto take_over_signals = [&] {
    signal.emplace(info.world_size == 1 ? StopSignal::Second::ends_at_once : StopSignal::Second::is_ignored);
  };
  if (info.world_size == 1 && !arguments.plans) std::call_once(has_met, take_over_signals);
  const int threads = threads_per_rank(recipe, plan);
  const Runtime runtime({.intra_op_threads = threads});
  const TrainOptions options{.recipe = recipe,
                             .folders = data_folders(recipe.folder),
                             .plans = arguments.plans,
                             .resume = arguments.resume,
                             .resume_from = arguments.resume_from,
                             .stop_after = arguments.stop_after,
                             .dump_dir = arguments.dump_dir,
                             .dump_steps = arguments.dump_steps,
                             .trace_file = arguments.trace_file,
                             .trace_steps = arguments.trace_steps,
                             .stop_requested = [&signal] { return signal->requested(); }};
  run_recipe_ranks(recipe, plan, start_facts(recipe, options), [&](const std::shared_ptr<Communicator>& world) {
    std::unique_ptr<ProgressBar> progress;
    if (world->rank() == 0) progress = std::make_unique<ProgressBar>();
    TrainOptions own = with_layout(options, threads, *world, progress.get());
    own.observer = progress.get();
    // On a second signal the launcher itself kills its ranks.
    std::call_once(has_met, take_over_signals);
    caravan::train(own, world);
    if (progress && arguments.stop_after && *arguments.stop_after < recipe.train.steps) {
      progress->line(fmt::format("stopped   after {} of {} steps; continue with --resume", *arguments.stop_after,
                                 recipe.train.steps));
    }
  });
  return 0;
}

}  // namespace caravan::app

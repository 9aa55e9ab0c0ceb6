#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/progress.h"
#include "apps/caravan/ranks.h"
#include "apps/caravan/stop_signal.h"
#include "caravan/base/content_hash.h"
#include "caravan/base/runtime.h"
#include "caravan/comm/selection.h"
#include "caravan/comm/shared/thread_ranks.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/comm/store/startup.h"
#include "caravan/comm/world.h"
#include "caravan/train/agreement.h"
#include "caravan/train/train.h"

namespace caravan::app {

int train(const TrainArguments& arguments) {
  Recipe recipe = load_recipe(arguments.recipe, arguments.overrides);
  resolve_files(recipe.data, data_folders(recipe.folder));
  const RankPlan plan = plan_ranks(recipe, arguments.ranks);
  const RankInfo info = RankInfo::from_environment();
  const bool as_threads = info.world_size == 1 && plan.num_ranks > 1;
  std::signal(SIGPIPE, SIG_IGN);  // a closed output does not end training: see Progress
  // On a second signal a launcher kills its ranks itself.
  const StopSignal signal(info.world_size > 1 ? StopSignal::Second::is_ignored : StopSignal::Second::ends_at_once);
  const Runtime runtime(
      {.intra_op_threads = threads_per_rank(recipe, as_threads ? plan.num_ranks : info.local_world_size)});
  const CommOptions comm{.timeout = std::chrono::milliseconds(static_cast<int64_t>(recipe.comm.timeout_s * 1e3)),
                         .check = recipe.comm.check,
                         .algorithms = selected_algorithms(recipe)};
  const TrainOptions options{.recipe = recipe,
                             .folders = data_folders(recipe.folder),
                             .resume = arguments.resume,
                             .resume_from = arguments.resume_from,
                             .stop_after = arguments.stop_after,
                             .dump_dir = arguments.dump_dir,
                             .dump_steps = arguments.dump_steps,
                             .trace_file = arguments.trace_file,
                             .trace_steps = arguments.trace_steps,
                             .stop_requested = [&signal] { return signal.requested(); }};
  const auto run = [&](const std::shared_ptr<Communicator>& world) {
    const bool has_table = comm.algorithms != nullptr;
    if (has_table && !world->select(comm.algorithms) && world->rank() == 0) {
      fmt::print(stderr, "caravan: comm.algorithms has no effect: {} does not use messages\n", world->backend());
    }
    std::unique_ptr<Progress> progress;
    if (world->rank() == 0) progress = std::make_unique<Progress>();
    TrainOptions own = options;
    own.observer = progress.get();
    caravan::train(own, world);
    if (progress && arguments.stop_after && *arguments.stop_after < recipe.train.steps) {
      progress->line(fmt::format("stopped   after {} of {} steps; continue with --resume", *arguments.stop_after,
                                 recipe.train.steps));
    }
  };
  if (as_threads) {
    run_thread_ranks(plan.num_ranks, run, comm);
  } else {
    const auto store =
        open_store(info, comm, [](const std::string& line) { std::fprintf(stderr, "caravan: %s\n", line.c_str()); });
    // Before there is a world: ranks with different back-ends would wait for each other in different places.
    std::vector<SharedFact> facts = start_facts(recipe, options);
    facts.push_back({"comm.algorithms, content",
                     comm.algorithms == nullptr ? "built in" : content_hash(comm.algorithms->to_json()).hex()});
    facts.push_back({"LOCAL_WORLD_SIZE == WORLD_SIZE", info.local_world_size == info.world_size ? "yes" : "no"});
    refuse_different_start(find_disagreement(*prefixed(store, "start"), info, facts, startup_timeout(comm)));
    run(make_world(recipe.comm.backend, info, store, comm));
  }
  return 0;
}

}  // namespace caravan::app

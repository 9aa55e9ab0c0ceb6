#include "apps/caravan/inspect/recipe_ranks.h"

#include <chrono>
#include <cstdio>

#include <fmt/format.h>

#include "caravan/base/content_hash.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/comm/choice/selection.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/comm/store/startup.h"
#include "caravan/comm/world.h"
#include "caravan/train/agreement.h"
#include "caravan/train/dataset/dataset.h"

namespace caravan::app {
namespace {

/// The table given by comm.algorithms; null: the built-in one.
std::shared_ptr<const algorithms::SelectionTable> selected_algorithms(const Recipe& recipe) {
  const std::string& table = recipe.comm.algorithms;
  if (table.empty()) return nullptr;
  return std::make_shared<const algorithms::SelectionTable>(
      algorithms::SelectionTable::load(find_file(table, data_folders(recipe.folder))));
}

}  // namespace

bool runs_as_threads(const RankPlan& plan) {
  return RankInfo::from_environment().world_size == 1 && plan.num_ranks > 1;
}

int threads_per_rank(const Recipe& recipe, const RankPlan& plan) {
  return threads_per_rank(recipe,
                          runs_as_threads(plan) ? plan.num_ranks : RankInfo::from_environment().local_world_size);
}

void run_recipe_ranks(const Recipe& recipe, const RankPlan& plan, std::vector<SharedFact> facts,
                      const std::function<void(const std::shared_ptr<Communicator>& world)>& body) {
  const CommOptions comm{.timeout = std::chrono::milliseconds(static_cast<int64_t>(recipe.comm.timeout_s * 1e3)),
                         .check = recipe.comm.check,
                         .algorithms = selected_algorithms(recipe)};
  const auto run = [&](const std::shared_ptr<Communicator>& world) {
    const bool has_table = comm.algorithms != nullptr;
    if (has_table && !world->select(comm.algorithms) && world->rank() == 0) {
      fmt::print(stderr, "caravan: comm.algorithms has no effect: {} does not use messages\n", world->backend());
    }
    body(world);
  };
  if (runs_as_threads(plan)) return run_thread_ranks(plan.num_ranks, run, comm);
  const RankInfo info = RankInfo::from_environment();
  const auto store =
      open_store(info, comm, [](const std::string& line) { std::fprintf(stderr, "caravan: %s\n", line.c_str()); });
  facts.push_back({"comm.algorithms, content",
                   comm.algorithms == nullptr ? "built in" : content_hash(comm.algorithms->to_json()).hex()});
  facts.push_back({"LOCAL_WORLD_SIZE == WORLD_SIZE", info.local_world_size == info.world_size ? "yes" : "no"});
  refuse_different_start(find_disagreement(*prefixed(store, "start"), info, facts, startup_timeout(comm)));
  run(make_world(recipe.comm.backend, info, store, comm));
}

}  // namespace caravan::app

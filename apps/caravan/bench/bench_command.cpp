#include <cstdio>
#include <map>
#include <memory>

#include <fmt/format.h>

#include "apps/caravan/bench/bench_report.h"
#include "apps/caravan/commands.h"
#include "apps/caravan/inspect/recipe_ranks.h"
#include "caravan/base/error.h"
#include "caravan/comm/algorithms/tune.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/comm/measure/core_ping.h"
#include "caravan/comm/measure/cores.h"
#include "caravan/comm/measure/statistics.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/comm/world.h"

namespace caravan::app {
namespace {

/// Measures on this rank; rank 0 prints.
class Bench {
 public:
  Bench(const BenchArguments& arguments, Communicator& world, bool is_one_host)
      : arguments_(arguments), world_(world), is_one_host_(is_one_host), ping_(world, 0, 1) {}

  void run() {
    for (const Verb verb : arguments_.verbs) {
      if (verb == Verb::barrier) {
        measure({.verb = verb, .dtype = Dtype::uint8, .bytes = 0, .copy = arguments_.copy});
        continue;
      }
      for (const Dtype dtype : arguments_.dtypes) {
        for (const int64_t bytes : arguments_.bytes) {
          measure({verb, dtype, bytes, arguments_.copy, arguments_.in_place});
        }
      }
    }
  }

 private:
  void measure(const measure::BenchCase& bench_case) {
    BenchRow row{.bench_case = bench_case, .backend = std::string(world_.backend()), .ranks = world_.size()};
    if (is_one_host_ && bench_case.bytes > 0) row.memory = memory_of(bench_case.bytes);
    measure::Exercise exercise(world_, bench_case);
    refuse_wrong(exercise);
    std::vector<double> pings;
    const auto ping = [&] {
      if (const auto ns = ping_.measure()) pings.push_back(*ns);
    };
    row.timing = measure::time_calls(world_, [&] { exercise.call(); }, exercise.calls_in_one(), {.between = ping});
    if (!pings.empty()) row.ping_ns = measure::quantile(pings, 0.5);
    print(row);
  }

  const measure::MemoryRates& memory_of(int64_t bytes) {
    const auto found = memory_.find(bytes);
    if (found != memory_.end()) return found->second;
    return memory_.emplace(bytes, measure::measure_memory(world_, bytes)).first->second;
  }

  /// Wrong results are not timed.
  void refuse_wrong(measure::Exercise& exercise) {
    const std::string wrong = exercise.check();
    double is_wrong = wrong.empty() ? 0 : 1;
    measure::take_slowest(world_, {&is_wrong, 1});
    if (is_wrong == 0) return;
    const measure::BenchCase& what = exercise.bench_case();
    throw InternalError({.op = "bench comm",
                         .subject = fmt::format("{} {} of {} bytes over {}", name(what.verb), name(what.dtype),
                                                what.bytes, world_.backend()),
                         .fact = "wrong result: " + (wrong.empty() ? "on another rank" : wrong),
                         .where = fmt::format("rank {} of {}", world_.rank(), world_.size()),
                         .action = "report this, with the command line"});
  }

  void print(const BenchRow& row) {
    if (world_.rank() != 0) return;
    if (!arguments_.json && !has_head_) fmt::print("{}", table_head(row));
    has_head_ = true;
    fmt::print("{}", arguments_.json ? json_line(row) : table_line(row));
    std::fflush(stdout);
  }

  const BenchArguments& arguments_;
  Communicator& world_;
  bool is_one_host_;
  measure::CorePing ping_;
  std::map<int64_t, measure::MemoryRates> memory_;
  bool has_head_ = false;
};

/// Measures the algorithms, prints the times and writes the table.
void tune(const BenchArguments& arguments, Communicator& world) {
  const bool prints = world.rank() == 0;
  const auto report = [&](const algorithms::Measurement& one) {
    if (!prints || !arguments.json) return;
    fmt::print("{}", json_line(one, std::string(world.backend()), world.size()));
    std::fflush(stdout);
  };
  const algorithms::TuneResult result =
      algorithms::tune(world, {.verbs = arguments.verbs, .bytes = arguments.bytes, .report = report});
  if (!prints) return;
  if (!arguments.json) {
    fmt::print("{} ranks over {}\n{}\n{}\n", world.size(), world.backend(), algorithms::to_string(result.measurements),
               result.table.to_string());
  }
  result.table.save(arguments.out);
  if (arguments.json) return;
  fmt::print("wrote     {}\n", arguments.out);
  if (world.backend() == "gloo" || world.backend() == "mpi") return;
  fmt::print(stderr, "caravan: {} does not use this table; gloo and mpi do: add --backend gloo\n", world.backend());
}

void run(const BenchArguments& arguments, Communicator& world, bool is_one_host) {
  if (arguments.tune) return tune(arguments, world);
  Bench(arguments, world, is_one_host).run();
}

}  // namespace

int bench_comm(const BenchArguments& arguments) {
  const RankPlan plan = plan_ranks(arguments.ranks, arguments.backend);
  if (plan.num_ranks < 2) {
    throw UsageError({"bench comm", "ranks", "1 rank has no peer", "", "start 2 or more ranks"});
  }
  const RankInfo info = RankInfo::from_environment();
  const std::vector<int> cores = measure::usable_cores();
  if (runs_as_threads(plan)) {
    run_thread_ranks(plan.num_ranks, [&](const std::shared_ptr<Communicator>& world) {
      const measure::PinnedThread pinned(cores, world->rank());
      run(arguments, *world, true);
    });
    return 0;
  }
  const auto store = open_store(info);
  const auto world = make_world(arguments.backend, info, store);
  // After make_world: the back-end's own threads must not inherit the pinning.
  const measure::PinnedThread pinned(cores, info.local_rank);
  run(arguments, *world, info.local_world_size == info.world_size);
  return 0;
}

}  // namespace caravan::app

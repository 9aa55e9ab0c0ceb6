// The command: reads the command line and the recipe, so that bad input ends before a rank starts; does what needs no
// tensor itself; starts the ranks. It does not link libtorch, whose loading takes longer than all that.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/launch.h"
#include "apps/caravan/options.h"
#include "apps/caravan/ranks.h"
#include "apps/caravan/run_main.h"
#include "caravan/base/error.h"
#include "caravan/train/recipe.h"

namespace caravan::app {
namespace {

/// The program every rank runs, beside this one.
std::string rank_program() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "caravan-rank").string();
}

/// Becomes the rank program, with the same arguments.
[[noreturn]] void become_rank(char** argv) {
  const std::string program = rank_program();
  ::execv(program.c_str(), argv);
  throw UsageError({"caravan", program, std::string("cannot be run: ") + std::strerror(errno), "",
                    "build it beside this program: ninja caravan_rank"});
}

/// Becomes the one process of the plan, or starts its ranks, each with this command line.
int start(const RankPlan& plan, const char* op, int argc, char** argv) {
  if (const int most = most_local_ranks(); plan.is_one_host && plan.num_ranks > most) {
    throw UsageError({op, "ranks", fmt::format("{} on one host", plan.num_ranks), "",
                      fmt::format("use {} or fewer, or start them on more hosts", most)});
  }
  if (plan.is_one_process) become_rank(argv);
  return launch({.num_ranks = plan.num_ranks,
                 .program = rank_program(),
                 .arguments = std::vector<std::string>(argv + 1, argv + argc),
                 .log_dir = ""});
}

int train(const TrainArguments& arguments, int argc, char** argv) {
  const Recipe recipe = load_recipe(arguments.recipe, arguments.overrides);
  const bool shares_memory = recipe.comm.backend == "shm" || recipe.comm.backend == "thread";
  if (shares_memory && !recipe.comm.algorithms.empty()) {
    throw UsageError({"recipe", "comm.algorithms", fmt::format("{} moves no messages", recipe.comm.backend), "",
                      "leave it out, or set comm.backend = \"gloo\""});
  }
  const RankPlan plan = plan_ranks(recipe, arguments.ranks);
  plan_batch(recipe, plan.num_ranks);
  return start(plan, "train", argc, argv);
}

/// Threads of a rank's arithmetic that wait for each other spin for microseconds, not milliseconds: on a core that
/// something else needs, long spinning makes a step 200 times slower. For the rank program, whose OpenMP reads it.
void wait_politely() {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) ::setenv("GOMP_SPINCOUNT", "5000", /*overwrite=*/0);
}

int run(const CommandLine& line, int argc, char** argv) {
  switch (line.command) {
    case CommandLine::Command::train: return train(line.train, argc, argv);
    case CommandLine::Command::inspect: return inspect(line.inspect);
    case CommandLine::Command::tokenizer: return tokenizer(line.tokenizer);
    case CommandLine::Command::bench_comm:
      return start(plan_ranks(line.bench.ranks, line.bench.backend), "bench comm", argc, argv);
    case CommandLine::Command::doctor: return start(plan_ranks(line.doctor.ranks, ""), "doctor", argc, argv);
    default: become_rank(argv);
  }
}

}  // namespace
}  // namespace caravan::app

int main(int argc, char** argv) {
  using namespace caravan::app;
  wait_politely();
  return run_main(argc, argv, [&](const CommandLine& line) { return run(line, argc, argv); });
}

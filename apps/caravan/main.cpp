// The program `caravan`: checks the command line and the recipe, so that bad input is refused before a rank starts;
// runs the commands that need no tensors; starts the ranks. It does not link libtorch, which takes longer to load than
// all of this takes to run.
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <unistd.h>
#include <vector>

#include "apps/caravan/commands.h"
#include "apps/caravan/launch/check_run.h"
#include "apps/caravan/launch/launch.h"
#include "apps/caravan/launch/libtorch.h"
#include "apps/caravan/launch/ranks.h"
#include "apps/caravan/launch/run_main.h"
#include "apps/caravan/options/options.h"
#include "caravan/base/error.h"
#include "caravan/base/system/cores.h"
#include "caravan/prove/proof_recipe.h"

namespace caravan::app {
namespace {

/// The program every rank runs; it is installed next to this one.
std::string rank_program() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "caravan-rank").string();
}

/// Becomes the rank program, with the same arguments.
[[noreturn]] void become_rank(char** argv) {
  require_libtorch(CARAVAN_LIBTORCH_DIR);
  const std::string program = rank_program();
  ::execv(program.c_str(), argv);
  throw UsageError({"caravan", program, std::string("cannot be run: ") + std::strerror(errno), "",
                    "build it beside this program: ninja caravan_rank"});
}

/// Becomes the single process of the plan, or starts its ranks, each with this command line. `reads_terminal`: rank 0
/// does.
int start(const RankPlan& plan, const char* op, int argc, char** argv, bool reads_terminal = false) {
  check_local_ranks(plan, op);
  if (plan.is_one_process) become_rank(argv);
  require_libtorch(CARAVAN_LIBTORCH_DIR);
  return launch({.num_ranks = plan.num_ranks,
                 .program = rank_program(),
                 .arguments = std::vector<std::string>(argv + 1, argv + argc),
                 .log_dir = "",
                 .gives_terminal = reads_terminal});
}

int train(const TrainArguments& arguments, int argc, char** argv) {
  const CheckedRun run = check_run(arguments.recipe, arguments.overrides, arguments.ranks, arguments.plans);
  std::signal(SIGPIPE, SIG_IGN);  // a closed output does not end training
  return start(run.ranks, "train", argc, argv);
}

/// Makes OpenMP threads of the ranks spin for microseconds instead of milliseconds while they wait for each other: on a
/// core that another process needs, long spinning makes a step 200 times slower.
void shorten_openmp_spinning() {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) ::setenv("GOMP_SPINCOUNT", "5000", /*overwrite=*/0);
}

int run(const CommandLine& line, int argc, char** argv) {
  switch (line.command) {
    case CommandLine::Command::train: return train(line.train, argc, argv);
    case CommandLine::Command::prove: {
      std::string note;
      return start(plan_proof(load_recipe_to_prove(line.prove.recipe, line.prove.overrides, note)), "prove", argc,
                   argv);
    }
    case CommandLine::Command::generate:
      return start(plan_ranks(line.generate.ranks, "", /*default_ranks=*/1), "generate", argc, argv,
                   /*reads_terminal=*/line.generate.chat);
    case CommandLine::Command::ask:
      return start(plan_ranks(line.ask.ranks, "", /*default_ranks=*/1), "ask", argc, argv);
    case CommandLine::Command::evaluate:
      return start(plan_ranks(line.evaluate.ranks, "", /*default_ranks=*/1), "evaluate", argc, argv);
    case CommandLine::Command::run: return run_program(line.run);
    case CommandLine::Command::new_project: return new_project(line.new_project);
    case CommandLine::Command::inspect:
      if (const std::optional<int> code = inspect(line.inspect)) return *code;
      become_rank(argv);
    case CommandLine::Command::plan:
      if (const std::optional<int> code = plan(line.plan)) return *code;
      become_rank(argv);
    case CommandLine::Command::plot: return plot(line.plot);
    case CommandLine::Command::compare: return compare(line.compare);
    case CommandLine::Command::report: return report(line.report);
    case CommandLine::Command::tokenizer: return tokenizer(line.tokenizer);
    case CommandLine::Command::inspect_data: return inspect_data(line.data);
    case CommandLine::Command::cache: return cache(line.cache);
    case CommandLine::Command::about: return about(line.about);
    case CommandLine::Command::bench_comm:
      return start(plan_ranks(line.bench.ranks, line.bench.backend), "bench comm", argc, argv);
    case CommandLine::Command::doctor:
      if (line.doctor.tune) become_rank(argv);
      return start(plan_ranks(line.doctor.ranks, "", line.doctor.hardware.empty() ? 2 : num_usable_cores()), "doctor",
                   argc, argv);
    default: become_rank(argv);
  }
}

}  // namespace
}  // namespace caravan::app

int main(int argc, char** argv) {
  using namespace caravan::app;
  shorten_openmp_spinning();
  return run_main(argc, argv, [&](const CommandLine& line) { return run(line, argc, argv); });
}

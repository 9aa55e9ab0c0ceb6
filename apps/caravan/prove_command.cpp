#include <cstdio>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "caravan/base/error.h"
#include "caravan/base/runtime.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/prove/prove.h"
#include "caravan/train/recipe.h"

namespace caravan::app {

int prove(const ProveArguments& arguments) {
  if (const RankInfo info = RankInfo::from_environment(); info.world_size > 1) {
    throw UsageError({.op = "prove",
                      .subject = "ranks",
                      .fact = fmt::format("are threads of one process, and {} processes were started", info.world_size),
                      .action = "run it without mpirun or torchrun"});
  }
  const ProveCase what = prove_case(load_recipe(arguments.recipe, arguments.overrides));
  const Runtime runtime({.intra_op_threads = 1});
  fmt::print("prove     {}\n", what.to_string());
  std::fflush(stdout);
  const Proof proof = caravan::prove(what);
  for (size_t step = 0; step < proof.steps.size(); ++step) {
    fmt::print("step {:<4} {}\n", step + 1, proof.steps[step].to_string());
  }
  if (proof.holds()) {
    fmt::print("{}\n", proof.to_string());
    return 0;
  }
  std::fflush(stdout);
  const Proof::Difference& first = *proof.first;
  const std::string others = first.num_others == 0 ? "" : fmt::format("; {} more differ", first.num_others);
  throw NumericsError({.op = "prove",
                       .subject = first.what,
                       .fact = first.fact(),
                       .where = fmt::format("step {}, {}{}", first.step + 1, first.where, others),
                       .action = "see how " + what.name + " lays out and reduces it"});
}

}  // namespace caravan::app

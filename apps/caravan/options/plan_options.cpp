#include <CLI/CLI.hpp>

#include "apps/caravan/options/option_groups.h"

namespace caravan::app {

void add_plan(CLI::App& app, CommandLine& line) {
  CLI::App* plan = app.add_subcommand("plan", "predict step time and memory");
  plan->add_option("--published", line.plan.published,
                   "a table (.csv) of published runs: predict each, and compare with the answers that it has")
      ->check(not_empty());
  plan->callback([&line] { line.command = CommandLine::Command::plan; });
}

}  // namespace caravan::app

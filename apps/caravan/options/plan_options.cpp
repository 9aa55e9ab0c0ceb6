#include <CLI/CLI.hpp>

#include "apps/caravan/options/option_groups.h"

namespace caravan::app {

void add_plan(CLI::App& app, CommandLine& line) {
  PlanArguments& plan = line.plan;
  CLI::App* command = app.add_subcommand(
      "plan", "what fits some hardware, how long a step takes, which layout is best and why not the others");
  command->add_option("recipe", plan.recipe, "recipe (a TOML file); default: the default recipe");
  CLI::Option* hardware =
      command->add_option("--hardware", plan.hardware,
                          "file that describes it (caravan doctor --hardware measures this machine), or a preset: "
                          "a100-80, h100-80, rtx-4090, ..");
  std::vector<CLI::Option*> of_recipe{
      hardware, command->add_option("--ranks", plan.ranks, "number of ranks; default: all devices")
                    ->check(CLI::Range(1, 10'000'000))};
  of_recipe.push_back(command->add_option("--per-host", plan.per_host, "of a preset: devices of a host; default 1")
                          ->check(CLI::Range(1, 1'000'000)));
  of_recipe.push_back(
      command->add_option("--hosts", plan.hosts, "of a preset: hosts; default 1")->check(CLI::Range(1, 1'000'000)));
  of_recipe.push_back(
      command->add_option("--link", plan.link,
                          "of a preset: what a device has to other hosts, 200Gb or 200Gbps (bits), or 25GB "
                          "a second; default: what is usual"));
  of_recipe.push_back(command->add_option("--price", plan.price, "of a preset: what a device costs an hour")
                          ->check(positive_number("of money an hour")));
  of_recipe.push_back(
      command
          ->add_option("--budget", plan.budget, "tokens of a run, such as 300G: how long it takes, and what it costs")
          ->check(not_empty()));
  of_recipe.push_back(command->add_option("--seconds", plan.seconds, "processor time of the search; default 20")
                          ->check(positive_number("seconds")));
  of_recipe.push_back(
      command->add_option("--write", plan.write, "file for the recipe of the best layout")->check(not_empty()));
  of_recipe.push_back(
      command->add_option("--write-rows", plan.write_rows, "folder for the recipes of all rows: 1.toml, 2.toml, ..")
          ->check(not_empty()));
  of_recipe.push_back(command->add_option("--trace", plan.trace, "file for its predicted timeline, as of train --trace")
                          ->check(not_empty()));
  of_recipe.push_back(
      command->add_option("--svg", plan.svg, "file to draw its predicted timeline in")->check(not_empty()));
  CLI::Option* published =
      command
          ->add_option("--published", plan.published,
                       "a table (.csv) of published runs: predict each, and compare with the answers that it has")
          ->check(not_empty());
  for (CLI::Option* option : of_recipe) published->excludes(option);
  add_set(*command, plan.overrides);
  command->callback([&line] {
    line.command = CommandLine::Command::plan;
    take_recipe_back(line.plan.recipe, line.plan.overrides);
  });
}

}  // namespace caravan::app

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/caravan/options/option_groups.h"
#include "caravan/base/error.h"

namespace caravan::app {
namespace {

constexpr int64_t kMostDumps = 1000;  // each is a folder with all parameters and gradients
constexpr int64_t kMostTraced = 1000;

/// An option that names steps.
struct StepOption {
  const char* name;
  int64_t first;  ///< what it counts from
  int64_t most;   ///< steps in one range
  const char* example;
};
constexpr StepOption kDumpSteps{"--dump-steps", 0, kMostDumps, "0,10 or 0-3"};
constexpr StepOption kTraceSteps{"--trace-steps", 1, kMostTraced, "3-5"};

[[noreturn]] void refuse_steps(const StepOption& option, const std::string& part, const std::string& fact,
                               const std::string& action) {
  throw UsageError({"command line", option.name, fmt::format("'{}' {}", part, fact), "", action});
}

int64_t parse_step(const StepOption& option, const std::string& text, const std::string& part) {
  int64_t step = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (error != std::errc() || end != text.data() + text.size() || step < option.first) {
    refuse_steps(option, part, "is neither a step nor a range of steps",
                 fmt::format("write steps counted from {}, e.g. {}", option.first, option.example));
  }
  return step;
}

/// "5" and "0-3".
StepRange parse_range(const StepOption& option, const std::string& part) {
  const size_t dash = part.find('-', 1);
  const int64_t first = parse_step(option, part.substr(0, dash), part);
  const int64_t last = dash == std::string::npos ? first : parse_step(option, part.substr(dash + 1), part);
  if (last < first) refuse_steps(option, part, "ends before it begins", fmt::format("write {}-{}", last, first));
  if (last - first >= option.most) {
    refuse_steps(option, part, fmt::format("has more than {} steps", option.most), "name fewer steps");
  }
  return {first, last};
}

/// "0,1,5" and "0-3" as a set of steps.
std::set<int64_t> parse_steps(const std::string& text) {
  std::set<int64_t> steps;
  for (const std::string& part : CLI::detail::split(text, ',')) {
    const StepRange range = parse_range(kDumpSteps, part);
    for (int64_t step = range.first; step <= range.last; ++step) steps.insert(step);
  }
  return steps;
}

void take_steps(const CLI::App& command, const std::string& dump_steps, const std::string& trace_steps,
                TrainArguments& train) {
  const bool names_dumps = command.count("--dump-steps") > 0;
  if (names_dumps) train.dump_steps = parse_steps(dump_steps);
  if (names_dumps && train.dump_dir.empty()) {
    throw UsageError({"command line", "--dump-steps", "has no effect without --dump", "", "add --dump DIR"});
  }
  const bool names_traced = command.count("--trace-steps") > 0;
  if (names_traced) train.trace_steps = parse_range(kTraceSteps, trace_steps);
  if (names_traced && train.trace_file.empty()) {
    throw UsageError({"command line", "--trace-steps", "has no effect without --trace", "", "add --trace FILE"});
  }
}

}  // namespace

void take_recipe_back(std::string& recipe, std::vector<std::string>& overrides) {
  if (!recipe.empty() || overrides.empty() || overrides.back().find('=') != std::string::npos) return;
  // A key without a value stays, and is refused as such.
  const std::string& word = overrides.back();
  std::error_code error;
  const bool is_file = word.ends_with(".toml") || word.find('/') != std::string::npos;
  if (word.empty() || (!is_file && !std::filesystem::is_regular_file(word, error))) return;
  recipe = word;
  overrides.pop_back();
}

CLI::Validator positive_number(const std::string& unit) {
  return {[unit](const std::string& text) {
            char* end = nullptr;
            const double number = std::strtod(text.c_str(), &end);
            if (text.empty() || *end != '\0' || std::isnan(number)) {
              return fmt::format("{} is not a number; give {}, such as 24", text, unit);
            }
            return number < 1e-3 || number > 1e6 ? text + " is not between 0.001 and 1000000" : std::string();
          },
          ""};
}

void add_set(CLI::App& command, std::vector<std::string>& overrides) {
  command.add_option("--set", overrides, "section.key=value: overrides the recipe; may be repeated")
      ->expected(1, -1)
      ->take_all();
}

void add_train(CLI::App& app, CommandLine& line) {
  TrainArguments& train = line.train;
  CLI::App* command = app.add_subcommand("train", "train a model over one or more ranks");
  struct Steps {
    std::string dumped;
    std::string traced;
  };
  const auto steps = std::make_shared<Steps>();
  command->add_option("recipe", train.recipe, "recipe, a TOML file; default: the default recipe");
  command->add_option("--ranks", train.ranks,
                      "number of processes on this host; default: the recipe's mesh, else 2 (1 on a single core)");
  add_set(*command, train.overrides);
  command->add_flag(
      "--auto", train.plans,
      "measure these ranks, choose the layout that is predicted to be fastest on them, and train with it; "
      "keys of the layout in --set stay as they are");
  command->add_option("--stop-after", train.stop_after, "save a checkpoint and stop after this many steps of the run");
  command->add_flag("--resume", train.resume, "continue from the newest checkpoint of the run");
  command
      ->add_option("--resume-from", train.resume_from,
                   "continue from this checkpoint of the run instead of the newest: step_000200, or its path")
      ->check(not_empty());
  command->add_option("--dump", train.dump_dir, "write batch, parameters and gradients of some steps into this folder")
      ->check(not_empty());
  command->add_option("--dump-steps", steps->dumped, "which steps, counted from 0, e.g. 0,10 or 0-3; default 0");
  command
      ->add_option("--trace", train.trace_file,
                   "write what every rank does in some steps into this file, for chrome://tracing and Perfetto")
      ->check(not_empty());
  command->add_option("--trace-steps", steps->traced,
                      "which steps, FIRST-LAST, counted from 1 as in the log; default: the third to the fifth of those "
                      "that the command runs");
  command->callback([&line, &train, command, steps] {
    line.command = CommandLine::Command::train;
    take_recipe_back(train.recipe, train.overrides);
    take_steps(*command, steps->dumped, steps->traced, train);
    if (train.stop_after && *train.stop_after < 1) {
      throw UsageError({"command line", "--stop-after", fmt::format("{} is not a number of steps", *train.stop_after),
                        "", "use 1 or more"});
    }
  });
}

void add_inspect(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand(
      "inspect", "print the batch, size and cost of a recipe, or what a run folder or checkpoint holds");
  CLI::App* flight =
      command->add_subcommand("flight", "find the first operation on which the ranks of a failed job differ");
  flight->add_option("folder", line.inspect.flight_folder, "the run folder, with its flight-rank<r>.json")->required();
  command->add_option("recipe", line.inspect.recipe,
                      "recipe (a TOML file), run folder or checkpoint; default: the default recipe");
  command->add_option("--ranks", line.inspect.ranks, "number of ranks to assume");
  CLI::Option* link =
      command
          ->add_option("--link", line.inspect.link_gbit_s,
                       "Gbit/s that one rank has to other hosts (a link that 8 ranks share: an eighth): "
                       "prints how long it sends, by axis")
          ->check(positive_number("Gbit/s"));
  CLI::Option* per_host =
      command->add_option("--per-host", line.inspect.per_host, "ranks of each host, which share its memory")
          ->check(CLI::Range(1, 1'000'000));
  CLI::Option* memory =
      command
          ->add_option("--memory", line.inspect.memory_gib,
                       "GiB that a rank has, as on other hosts: for the verdict and micro_batch = \"auto\"")
          ->check(positive_number("GiB"));
  CLI::Option* alone = command->add_flag("--recipe", line.inspect.recipe_alone,
                                         "print every key of the recipe as it is used, as TOML, and nothing else");
  CLI::Option* layouts =
      command->add_flag("--layouts", line.inspect.layouts,
                        "how parameters and activations are laid out, and what is sent between modules");
  CLI::Option* schedule = command->add_flag("--schedule", line.inspect.schedule,
                                            "the passes of a pipeline over time, its bubble, memory and bytes");
  for (CLI::Option* cost : {link, per_host, memory}) {
    for (CLI::Option* other : {schedule, layouts, alone}) other->excludes(cost);
  }
  schedule->excludes(layouts);
  alone->excludes(layouts)->excludes(schedule);
  command->add_option("--svg", line.inspect.svg, "file for a drawing of the schedule")->needs(schedule);
  add_set(*command, line.inspect.overrides);
  command->callback([&line] {
    line.command = CommandLine::Command::inspect;
    take_recipe_back(line.inspect.recipe, line.inspect.overrides);
  });
}

void add_prove(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand(
      "prove",
      "compare the parallelism of a recipe's mesh with one process: loss, gradients and updates of a small model");
  command->add_option("recipe", line.prove.recipe, "recipe, a TOML file; default: the default recipe");
  add_set(*command, line.prove.overrides);
  command
      ->add_option("--plant", line.prove.planted,
                   "PATH=FACTOR: multiply what a path computes, to see that the proof then fails")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->callback([&line] {
    line.command = CommandLine::Command::prove;
    take_recipe_back(line.prove.recipe, line.prove.overrides);
  });
}

}  // namespace caravan::app

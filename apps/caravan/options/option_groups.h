#pragma once

#include <string>
#include <vector>

#include "apps/caravan/options/options.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace caravan::app {

// Each function adds one or several commands. When its command is parsed, it sets line.command. `line` outlives the
// parsing.

void add_train(CLI::App& app, CommandLine& line);
void add_run(CLI::App& app, CommandLine& line);
void add_new(CLI::App& app, CommandLine& line);
void add_inspect(CLI::App& app, CommandLine& line);
void add_plan(CLI::App& app, CommandLine& line);
void add_prove(CLI::App& app, CommandLine& line);
void add_generate(CLI::App& app, CommandLine& line);
void add_ask(CLI::App& app, CommandLine& line);
void add_evaluate(CLI::App& app, CommandLine& line);
void add_hugging_face(CLI::App& app, CommandLine& line);
void add_reports(CLI::App& app, CommandLine& line);
void add_tokenizer(CLI::App& app, CommandLine& line);
void add_data(CLI::App& app, CommandLine& line);
void add_cache(CLI::App& app, CommandLine& line);
void add_bench(CLI::App& app, CommandLine& line);
void add_doctor(CLI::App& app, CommandLine& line);
void add_about(CLI::App& app, CommandLine& line);

/// --offload, --disk-dirs
void add_offload(CLI::App& command, OffloadArguments& offload);
/// Throws UsageError for folders without a disk tier or the other way round.
void check_offload(const OffloadArguments& offload, const std::string& command);

/// --set
void add_set(CLI::App& command, std::vector<std::string>& overrides);

/// --set takes a list; a last word without '=' is the recipe.
void take_recipe_back(std::string& recipe, std::vector<std::string>& overrides);

/// From 0.001 to 1000000. `unit` is the unit of the number.
CLI::Validator positive_number(const std::string& unit);

/// Moves the program and its arguments from the words of `caravan run` into `run` before the others are parsed, since
/// its options look alike. --ranks N stays, unless it comes after --.
void split_run(std::vector<std::string>& words, RunArguments& run);

/// For options that take text: an unset variable of a script must not change what the command does.
CLI::Validator not_empty();

}  // namespace caravan::app

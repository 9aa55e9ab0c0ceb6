#include <algorithm>

#include <CLI/CLI.hpp>

#include "apps/caravan/options/option_groups.h"
#include "caravan/base/error.h"

namespace caravan::app {
namespace {

const char* const kRunHelp =
    "start a program of your own as ranks on this host: an executable or a script\n\n"
    "caravan run [--ranks N] [--log-dir DIR] PROGRAM [ARGS..]\n\n"
    "A PROGRAM without a slash is looked up in PATH. Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,\n"
    "MASTER_ADDR and MASTER_PORT in its environment, as under torchrun. ARGS go to the program as they are, except "
    "that\n"
    "--ranks N among them is understood here; what follows -- is not looked at.";

bool takes_value(const std::string& word) { return word == "--ranks" || word == "--log-dir"; }

}  // namespace

void split_run(std::vector<std::string>& words, RunArguments& run) {
  if (words.empty() || words.front() != "run") return;
  size_t at = 1;
  while (at < words.size() && words[at].starts_with('-') && words[at] != "--") at += takes_value(words[at]) ? 2 : 1;
  if (at >= words.size()) return;
  const std::vector<std::string> rest(words.begin() + static_cast<std::ptrdiff_t>(at), words.end());
  words.resize(at);
  bool is_open = true;  // no -- yet
  for (size_t i = 0; i < rest.size(); ++i) {
    if (is_open && rest[i] == "--") {
      is_open = false;
    } else if (is_open && rest[i] == "--ranks") {
      words.insert(words.end(), rest.begin() + static_cast<std::ptrdiff_t>(i),
                   rest.begin() + static_cast<std::ptrdiff_t>(std::min(i + 2, rest.size())));
      ++i;
    } else if (is_open && rest[i].starts_with("--ranks=")) {
      words.push_back(rest[i]);
    } else {
      run.words.push_back(rest[i]);
    }
  }
}

void add_run(CLI::App& app, CommandLine& line) {
  RunArguments& run = line.run;
  CLI::App* command = app.add_subcommand("run", kRunHelp);
  command->add_option("--ranks", run.ranks, "number of processes on this host; default 2 (1 on a single core)");
  command->add_option("--log-dir", run.log_dir, "folder for rank_N.log, the output of every rank but 0")
      ->check(not_empty());
  command->callback([&line, &run] {
    line.command = CommandLine::Command::run;
    if (run.words.empty() || run.words.front().empty()) {
      throw UsageError({"command line", "run", "names no program", "", "write caravan run PROGRAM [ARGS..]"});
    }
  });
}

void add_new(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("new", "write a program of your own to start from: a CMake project");
  command->add_option("folder", line.new_project.folder, "a new folder; its name becomes that of the program")
      ->required()
      ->check(not_empty());
  command
      ->add_option("--template", line.new_project.template_name,
                   "the program of examples/ that main.cpp is, without its number, such as fsdp; default: own_loop")
      ->type_name("NAME");
  command->callback([&line] { line.command = CommandLine::Command::new_project; });
}

}  // namespace caravan::app

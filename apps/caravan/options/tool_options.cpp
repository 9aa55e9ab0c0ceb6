#include <CLI/CLI.hpp>

#include "apps/caravan/options/option_groups.h"

namespace caravan::app {

void add_reports(CLI::App& app, CommandLine& line) {
  CLI::App* plot = app.add_subcommand("plot", "draw the curves of runs: loss, norm, learning rate, speed, memory");
  plot->add_option("runs", line.plot.runs, "run folders")->required();
  plot->add_option("--of", line.plot.quantities, "names in train.log, e.g. loss,val_loss; default: the usual ones")
      ->delimiter(',');
  plot->add_option("--over", line.plot.axis, "what the curves are over: step, tokens or time");
  plot->add_option("--svg", line.plot.svg, "file to draw in; default: as text")->check(not_empty());
  plot->callback([&line] { line.command = CommandLine::Command::plot; });
  CLI::App* compare = app.add_subcommand("compare", "put runs side by side: losses, speed, memory, recipes");
  compare->add_option("runs", line.compare.runs, "run folders")->required()->expected(2, 16);
  compare->callback([&line] { line.command = CommandLine::Command::compare; });
  CLI::App* report = app.add_subcommand("report", "write a page about a run: curves, recipe, machine, schedule");
  report->add_option("run", line.report.run, "run folder")->required();
  report->add_option("--trace", line.report.trace, "a file of train --trace: the page shows its last step")
      ->check(not_empty());
  report->add_option("--out", line.report.out, "HTML file; default: <run>/report.html")->check(not_empty());
  report->callback([&line] { line.command = CommandLine::Command::report; });
}

void add_tokenizer(CLI::App& app, CommandLine& line) {
  TokenizerArguments& tokenizer = line.tokenizer;
  CLI::App* command = app.add_subcommand("tokenizer", "train a tokenizer, or try one");
  command->require_subcommand(1);
  command->callback([&line] { line.command = CommandLine::Command::tokenizer; });
  using Action = TokenizerArguments::Action;
  CLI::App* train = command->add_subcommand("train", "byte-level BPE from text files");
  train->callback([&tokenizer] { tokenizer.action = Action::train; });
  train->add_option("texts", tokenizer.texts, "files, folders or patterns, as data.text of a recipe")->required();
  train->add_option("--field", tokenizer.field, "field of JSON lines that has the text");
  train->add_option("--vocabulary", tokenizer.vocabulary, "number of tokens, including the 256 bytes");
  train->add_option("--out", tokenizer.out, "file to write");
  CLI::App* encode = command->add_subcommand("encode", "text to ids");
  encode->callback([&tokenizer] { tokenizer.action = Action::encode; });
  CLI::App* decode = command->add_subcommand("decode", "ids to text");
  decode->callback([&tokenizer] { tokenizer.action = Action::decode; });
  for (CLI::App* one : {encode, decode}) {
    one->add_option("tokenizer", tokenizer.tokenizer, "\"bytes\" or a tokenizer.json")->required();
    one->add_option("input", tokenizer.input, "default: standard input");
  }
}

void add_data(CLI::App& app, CommandLine& line) {
  DataArguments& data = line.data;
  CLI::App* command = app.add_subcommand("data", "see what a model will be trained on");
  command->require_subcommand(1);
  CLI::App* inspect = command->add_subcommand("inspect", "texts, tokens and sequences, token by token");
  inspect->add_option("file", data.file,
                      "a recipe (.toml), or a file, folder or pattern of texts; default: the default recipe");
  inspect->add_option("--samples", data.num_samples, "sequences to print; default 1")->check(CLI::Range(0, 1'000'000));
  inspect->add_option("--first", data.first_sample, "the first of them, in the order of training; default 0")
      ->check(CLI::NonNegativeNumber);
  add_set(*inspect, data.overrides);
  inspect->callback([&line] { line.command = CommandLine::Command::inspect_data; });
}

void add_cache(CLI::App& app, CommandLine& line) {
  CacheArguments& cache = line.cache;
  CLI::App* command = app.add_subcommand("cache", "list, measure or clear the cache of tokenized texts");
  command->require_subcommand(0, 1);
  command->callback([&line] { line.command = CommandLine::Command::cache; });
  using Action = CacheArguments::Action;
  command->add_subcommand("list", "each file, least recently used first (the default)");
  command->add_subcommand("size", "number of files, and bytes")->callback([&cache] { cache.action = Action::size; });
  command->add_subcommand("clear", "remove every file that no process uses")->callback([&cache] {
    cache.action = Action::clear;
  });
}

void add_about(CLI::App& app, CommandLine& line) {
  using What = AboutArguments::What;
  const auto add = [&](const char* name, const char* help, What what) {
    CLI::App* command = app.add_subcommand(name, help);
    command->callback([&line, what] {
      line.command = CommandLine::Command::about;
      line.about.what = what;
    });
    return command;
  };
  add("version", "the version, and what it was built with", What::version);
  add("completion", "print a script with which a shell completes this command: source <(caravan completion bash)",
      What::completion)
      ->add_option("shell", line.about.shell, "bash, zsh or fish")
      ->required();
  add("manual", "print the manual page: caravan manual | man -l -", What::manual);
}

}  // namespace caravan::app

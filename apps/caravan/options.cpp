#include "apps/caravan/options.h"

#include <charconv>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/caravan/bench_options.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan::app {
namespace {

const char* const kVersion = "caravan 0.1.0";

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

/// An unset variable of a script must not change what the command does.
std::string check_not_empty(const std::string& text) { return text.empty() ? "must not be empty" : ""; }

void add_train(CLI::App& app, CommandLine& line, std::string& dump_steps, std::string& trace_steps) {
  TrainArguments& train = line.train;
  CLI::App* command = app.add_subcommand("train", "train a model over one or more ranks");
  command->add_option("recipe", train.recipe, "recipe, a TOML file; default: the default recipe");
  command->add_option("--ranks", train.ranks,
                      "number of processes on this host; default: the recipe's mesh, else 2 (1 on a single core)");
  command->add_option("--set", train.overrides, "section.key=value: overrides the recipe; may be repeated")
      ->expected(1, -1)
      ->take_all();
  command->add_option("--stop-after", train.stop_after, "save a checkpoint and stop after this many steps of the run");
  command->add_flag("--resume", train.resume, "continue from the newest checkpoint of the run");
  command
      ->add_option("--resume-from", train.resume_from,
                   "continue from this checkpoint of the run instead of the newest: step_000200, or its path")
      ->check(CLI::Validator(check_not_empty, "", "not empty"));
  command->add_option("--dump", train.dump_dir, "write batch, parameters and gradients of some steps into this folder")
      ->check(CLI::Validator(check_not_empty, "", "not empty"));
  command->add_option("--dump-steps", dump_steps, "which steps, counted from 0, e.g. 0,10 or 0-3; default 0");
  command
      ->add_option("--trace", train.trace_file,
                   "write what every rank does in some steps into this file, for chrome://tracing and Perfetto")
      ->check(CLI::Validator(check_not_empty, "", "not empty"));
  command->add_option("--trace-steps", trace_steps,
                      "which steps, FIRST-LAST, counted from 1 as in the log; default: the third to the fifth of those "
                      "that the command runs");
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

void add_generate(CLI::App& app, CommandLine& line) {
  GenerateArguments& generate = line.generate;
  CLI::App* command = app.add_subcommand("generate", "continue a text with a trained or imported model");
  command->add_option("source", generate.source,
                      "a run, a checkpoint or a Hugging Face folder; default: the newest run");
  command->add_option("--prompt", generate.prompt, "the text to continue; - reads it from standard input");
  command->add_option("--tokens", generate.tokens, "number of tokens to generate");
  command->add_option("--temperature", generate.temperature, "sampling temperature; 0: always the most likely token");
  command->add_option("--top-k", generate.top_k, "sample from this many most likely tokens; 0: from all");
  command->add_option("--top-p", generate.top_p,
                      "sample from the most likely tokens that reach this total probability");
  const auto check_seed = [](const std::string& text) {
    const bool is_number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    return is_number ? "" : "'" + text + "' is not a whole number of at least 0";
  };
  command->add_option("--seed", generate.seed, "seed of the sampling")->check(CLI::Validator(check_seed, "", "seed"));
}

void add_hugging_face(CLI::App& app, CommandLine& line) {
  CLI::App* exporter = app.add_subcommand("export", "write a model in Hugging Face format");
  exporter
      ->add_option("directory", line.export_model.directory,
                   "a run or checkpoint: its model is written to <directory>/huggingface; or a new folder to write to, "
                   "for the model of --from")
      ->required();
  exporter->add_option("--from", line.export_model.from,
                       "run, checkpoint or Hugging Face folder whose model goes into a new folder; "
                       "default: the newest run");
  CLI::App* importer =
      app.add_subcommand("import", "create a run folder from a Hugging Face GPT-2, Llama, Qwen2 or Mixtral");
  importer
      ->add_option("source", line.import_model.source, "folder with config.json, model.safetensors and tokenizer.json")
      ->required();
  importer->add_option("--out", line.import_model.out, "run folder to create; default: runs/<name>-N");
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
      command->add_option("--link", line.inspect.link_gbit_s, "Gbit/s of a rank's link: prints how long it sends")
          ->check(CLI::Range(1e-3, 1e6));
  CLI::Option* layouts =
      command->add_flag("--layouts", line.inspect.layouts,
                        "how parameters and activations are laid out, and what is sent between modules");
  CLI::Option* schedule = command->add_flag("--schedule", line.inspect.schedule,
                                            "the passes of a pipeline over time, its bubble, memory and bytes");
  schedule->excludes(link)->excludes(layouts);
  command->add_option("--svg", line.inspect.svg, "file for a drawing of the schedule")->needs(schedule);
  command->add_option("--set", line.inspect.overrides, "section.key=value: overrides the recipe")
      ->expected(1, -1)
      ->take_all();
}

void add_prove(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand(
      "prove", "compare a recipe's parallelism with one process: loss, gradients and updates of a small model");
  command->add_option("recipe", line.prove.recipe, "recipe, a TOML file; default: the default recipe");
  command->add_option("--set", line.prove.overrides, "section.key=value: overrides the recipe; may be repeated")
      ->expected(1, -1)
      ->take_all();
}

void add_reports(CLI::App& app, CommandLine& line) {
  const auto not_empty = CLI::Validator(check_not_empty, "", "not empty");
  CLI::App* plot = app.add_subcommand("plot", "draw the curves of runs: loss, norm, learning rate, speed, memory");
  plot->add_option("runs", line.plot.runs, "run folders")->required();
  plot->add_option("--of", line.plot.quantities, "names in train.log, e.g. loss,val_loss; default: the usual ones")
      ->delimiter(',');
  plot->add_option("--over", line.plot.axis, "what the curves are over: step, tokens or time");
  plot->add_option("--svg", line.plot.svg, "file to draw in; default: as text")->check(not_empty);
  CLI::App* compare = app.add_subcommand("compare", "put runs side by side: losses, speed, memory, recipes");
  compare->add_option("runs", line.compare.runs, "run folders")->required()->expected(2, 16);
  CLI::App* report = app.add_subcommand("report", "write a page about a run: curves, recipe, machine, schedule");
  report->add_option("run", line.report.run, "run folder")->required();
  report->add_option("--out", line.report.out, "HTML file; default: <run>/report.html")->check(not_empty);
}

void add_tokenizer(CLI::App& app, CommandLine& line) {
  TokenizerArguments& tokenizer = line.tokenizer;
  CLI::App* command = app.add_subcommand("tokenizer", "train a tokenizer, or try one");
  command->require_subcommand(1);
  using Action = TokenizerArguments::Action;
  CLI::App* train = command->add_subcommand("train", "byte-level BPE from text files");
  train->callback([&tokenizer] { tokenizer.action = Action::train; });
  train->add_option("texts", tokenizer.texts, "text files")->required();
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

void add_cache(CLI::App& app, CommandLine& line) {
  CacheArguments& cache = line.cache;
  CLI::App* command = app.add_subcommand("cache", "list, measure or clear the cache of tokenized texts");
  command->require_subcommand(0, 1);
  using Action = CacheArguments::Action;
  command->add_subcommand("list", "each file, least recently used first (the default)");
  command->add_subcommand("size", "number of files, and bytes")->callback([&cache] { cache.action = Action::size; });
  command->add_subcommand("clear", "remove every file that no process uses")->callback([&cache] {
    cache.action = Action::clear;
  });
}

/// Refuses the words that CLI11 left over, with the nearest option or command.
[[noreturn]] void refuse_extras(const CLI::App& app, const std::string& message) {
  const CLI::App* where = &app;
  std::vector<std::string> known;
  while (!where->get_subcommands().empty()) where = where->get_subcommands().front();
  for (const CLI::Option* option : where->get_options()) {
    if (!option->get_lnames().empty()) known.push_back("--" + option->get_lnames().front());
  }
  for (const CLI::App* command : where->get_subcommands([](const CLI::App*) { return true; }))
    known.push_back(command->get_name());
  const std::vector<std::string> words = app.remaining(true);
  const std::string word = words.empty() ? "" : words.front().substr(0, words.front().find('='));
  throw UsageError({"command line", word, message.empty() ? "not understood" : message, "",
                    word.empty() ? "see caravan --help" : "the nearest is '" + nearest(word, known) + "'; see --help"});
}

CommandLine::Command command_of(const CLI::App& app) {
  using Command = CommandLine::Command;
  static const std::vector<std::pair<std::string, Command>> names{
      {"train", Command::train},         {"generate", Command::generate}, {"export", Command::export_model},
      {"import", Command::import_model}, {"inspect", Command::inspect},   {"prove", Command::prove},
      {"tokenizer", Command::tokenizer}, {"bench", Command::bench_comm},  {"doctor", Command::doctor},
      {"cache", Command::cache},         {"plot", Command::plot},         {"compare", Command::compare},
      {"report", Command::report}};
  for (const auto& [name, command] : names) {
    if (app.got_subcommand(name)) return command;
  }
  throw InternalError({"command line", "", "no command was parsed", "", ""});
}

/// --set takes a list; a last word without '=' is the recipe.
void take_recipe_back(std::string& recipe, std::vector<std::string>& overrides) {
  if (!recipe.empty() || overrides.empty() || overrides.back().find('=') != std::string::npos) return;
  recipe = overrides.back();
  overrides.pop_back();
}

}  // namespace

std::optional<CommandLine> parse_command_line(int argc, const char* const* argv, std::string& text) {
  CommandLine line{};
  std::string dump_steps;
  std::string trace_steps;
  CLI::App app("Caravan trains large models over many processes and machines.", "caravan");
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  app.allow_extras();
  add_train(app, line, dump_steps, trace_steps);
  add_generate(app, line);
  add_hugging_face(app, line);
  add_inspect(app, line);
  add_prove(app, line);
  add_reports(app, line);
  add_tokenizer(app, line);
  add_cache(app, line);
  BenchWords bench;
  add_bench(app, line.bench, bench);
  add_doctor(app, line.doctor);
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) command->allow_extras();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    text = app.help();
    return std::nullopt;
  } catch (const CLI::CallForVersion&) {
    text = std::string(kVersion) + "\n";
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (!app.remaining(true).empty()) refuse_extras(app, "");
    throw UsageError({"command line", "", error.what(), "", "see caravan --help"});
  }
  if (!app.remaining(true).empty()) refuse_extras(app, "");
  line.command = command_of(app);
  if (line.command == CommandLine::Command::bench_comm) read_bench(bench, line.bench);
  take_recipe_back(line.train.recipe, line.train.overrides);
  take_recipe_back(line.inspect.recipe, line.inspect.overrides);
  take_recipe_back(line.prove.recipe, line.prove.overrides);
  take_steps(*app.get_subcommand("train"), dump_steps, trace_steps, line.train);
  if (line.train.stop_after && *line.train.stop_after < 1) {
    throw UsageError({"command line", "--stop-after",
                      fmt::format("{} is not a number of steps", *line.train.stop_after), "", "use 1 or more"});
  }
  return line;
}

}  // namespace caravan::app

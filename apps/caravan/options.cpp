#include "apps/caravan/options.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/caravan/bench_options.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan::app {
namespace {

const char* const kVersion = "caravan 0.1.0";

/// "0,1,5" and "0-3" as a set of steps.
std::set<int64_t> parse_steps(const std::string& text) {
  std::set<int64_t> steps;
  for (const std::string& part : CLI::detail::split(text, ',')) {
    size_t used = 0;
    int64_t step = -1;
    try {
      step = std::stoll(part, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used == 0 || used != part.size() || step < 0) {
      throw UsageError(
          {"command line", "--dump-steps", "'" + part + "' is no step", "", "write steps from 0 on, e.g. 0,1,10"});
    }
    steps.insert(step);
  }
  return steps;
}

void add_train(CLI::App& app, CommandLine& line, std::string& dump_steps) {
  TrainArguments& train = line.train;
  CLI::App* command = app.add_subcommand("train", "train a model, over as many ranks as asked for");
  command->add_option("recipe", train.recipe, "a TOML file; without one the default recipe");
  command->add_option("--ranks", train.ranks,
                      "processes of this host; default: the recipe's mesh, else 2 (1 on one core)");
  command->add_option("--set", train.overrides, "section.key=value, over the recipe; may be repeated")
      ->expected(1, -1)
      ->take_all();
  command->add_option("--stop-after", train.stop_after, "end, with a checkpoint, after this many steps of the run");
  command->add_flag("--resume", train.resume, "go on from the newest checkpoint of the run");
  command->add_option("--dump", train.dump_dir, "write batch, parameters and gradients of some steps into this folder");
  command->add_option("--dump-steps", dump_steps, "which steps, counted from 0: 0,1 (default 0)");
}

void add_generate(CLI::App& app, CommandLine& line) {
  GenerateArguments& generate = line.generate;
  CLI::App* command = app.add_subcommand("generate", "continue a text with a trained or imported model");
  command->add_option("source", generate.source,
                      "a run, a checkpoint or a Hugging Face folder; default: the newest run");
  command->add_option("--prompt", generate.prompt, "the text to continue");
  command->add_option("--tokens", generate.tokens, "how many tokens to add");
  command->add_option("--temperature", generate.temperature, "0 takes the likeliest token");
  command->add_option("--top-k", generate.top_k, "draw among this many; 0: all");
  command->add_option("--top-p", generate.top_p, "draw among the likeliest of this probability together");
  command->add_option("--seed", generate.seed, "of the draws")->check(CLI::NonNegativeNumber);
}

void add_hugging_face(CLI::App& app, CommandLine& line) {
  CLI::App* exporter = app.add_subcommand("export", "write a model as transformers reads it");
  exporter
      ->add_option("directory", line.export_model.directory,
                   "a run, whose model goes into <run>/huggingface; or a folder to write the newest run's into")
      ->required();
  exporter->add_option("--from", line.export_model.from, "run or checkpoint folder; default: the newest run");
  CLI::App* importer = app.add_subcommand("import", "make a run folder of a Hugging Face GPT-2 or Llama");
  importer
      ->add_option("source", line.import_model.source, "folder with config.json, model.safetensors and tokenizer.json")
      ->required();
  importer->add_option("--out", line.import_model.out, "run folder to make; default: runs/<name>-N");
}

void add_inspect(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("inspect", "print what a recipe comes to, without running it");
  CLI::App* flight = command->add_subcommand("flight", "say where the ranks of a failed job parted");
  flight->add_option("folder", line.inspect.flight_folder, "the run folder, with its flight-rank<r>.json")->required();
  command->add_option("recipe", line.inspect.recipe, "a TOML file; without one the default recipe");
  command->add_option("--ranks", line.inspect.ranks, "for this many ranks");
  command->add_option("--set", line.inspect.overrides, "section.key=value, over the recipe")
      ->expected(1, -1)
      ->take_all();
}

void add_tokenizer(CLI::App& app, CommandLine& line) {
  TokenizerArguments& tokenizer = line.tokenizer;
  CLI::App* command = app.add_subcommand("tokenizer", "train a tokenizer, or try one");
  command->require_subcommand(1);
  using Action = TokenizerArguments::Action;
  CLI::App* train = command->add_subcommand("train", "byte-level BPE from text files");
  train->callback([&tokenizer] { tokenizer.action = Action::train; });
  train->add_option("texts", tokenizer.texts, "text files")->required();
  train->add_option("--vocabulary", tokenizer.vocabulary, "tokens, the 256 bytes included");
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

/// The words CLI11 could not place, with the option or command they come nearest to.
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
  const std::string word = words.empty() ? "" : words.front();
  throw UsageError({"command line", word, message.empty() ? "not understood" : message, "",
                    word.empty() ? "see caravan --help" : "the nearest is '" + nearest(word, known) + "'; see --help"});
}

CommandLine::Command command_of(const CLI::App& app) {
  using Command = CommandLine::Command;
  static const std::vector<std::pair<std::string, Command>> names{
      {"train", Command::train},         {"generate", Command::generate}, {"export", Command::export_model},
      {"import", Command::import_model}, {"inspect", Command::inspect},   {"tokenizer", Command::tokenizer},
      {"bench", Command::bench_comm},    {"doctor", Command::doctor}};
  for (const auto& [name, command] : names) {
    if (app.got_subcommand(name)) return command;
  }
  throw InternalError({"command line", "", "no command was chosen", "", ""});
}

/// What stands behind --set is a list: a last word without '=' is the recipe.
void take_recipe_back(std::string& recipe, std::vector<std::string>& overrides) {
  if (!recipe.empty() || overrides.empty() || overrides.back().find('=') != std::string::npos) return;
  recipe = overrides.back();
  overrides.pop_back();
}

}  // namespace

std::optional<CommandLine> parse_command_line(int argc, const char* const* argv, std::string& text) {
  CommandLine line{};
  std::string dump_steps;
  CLI::App app("Caravan trains large models over many processes and machines.", "caravan");
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  app.allow_extras();
  add_train(app, line, dump_steps);
  add_generate(app, line);
  add_hugging_face(app, line);
  add_inspect(app, line);
  add_tokenizer(app, line);
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
  if (!dump_steps.empty()) line.train.dump_steps = parse_steps(dump_steps);
  if (!dump_steps.empty() && line.train.dump_dir.empty()) {
    throw UsageError({"command line", "--dump-steps", "says which steps, but not where to", "", "add --dump DIR"});
  }
  if (line.train.stop_after && *line.train.stop_after < 1) {
    throw UsageError({"command line", "--stop-after", fmt::format("{} is no number of steps", *line.train.stop_after),
                      "", "use 1 or more"});
  }
  return line;
}

}  // namespace caravan::app

#include <string>

#include <CLI/CLI.hpp>

#include "apps/caravan/options/option_groups.h"

namespace caravan::app {
namespace {

CLI::App* add_question(CLI::App& app, CommandLine& line, const char* name, const char* about, AskArguments::What what) {
  AskArguments& ask = line.ask;
  CLI::App* command = app.add_subcommand(name, about);
  command->add_option("source", ask.source, "a run, a checkpoint or a Hugging Face folder; default: the newest run");
  CLI::Option* text = command->add_option("--text", ask.text, "the text; - reads it from standard input");
  CLI::Option* texts =
      command->add_option("--texts", ask.texts,
                          "a file of texts: one a line, or, in a .jsonl file, the fields of each line that "
                          "--field and --pair-field name");
  texts->check(not_empty())->excludes(text);
  const auto field = [&](const char* option, std::optional<std::string>& value, const char* help) {
    command->add_option(option, value, help)->check(not_empty())->needs(texts);
  };
  field("--field", ask.field, "the texts in JSON lines; default: text");
  field("--pair-field", ask.pair_field,
        "the second texts in JSON lines; default: pair, in lines that have it, without --field");
  command->add_option("--pair", ask.pair, "a second text, which belongs to the first")->needs(text);
  command->add_flag("--json", ask.json, "print one JSON object per text");
  command->add_flag("--truncate", ask.truncate,
                    "of a text with more tokens than the model's context, use the first ones");
  command->add_option("--ranks", ask.ranks, "number of processes that share the model; default: 1");
  const auto degree = [&](const char* option, int& value, const char* help) {
    command->add_option(option, value, help)->check(CLI::Range(1, 1 << 20).description("whole number"));
  };
  degree("--tp", ask.tp, "ranks that share each layer; default: those that --pp and --ep leave");
  degree("--pp", ask.pp, "ranks that hold layers one after another; default: 1");
  degree("--ep", ask.ep, "ranks that share the experts; default: 1");
  add_offload(*command, ask.offload);
  command->callback([&line, what, name = std::string(name)] {
    line.command = CommandLine::Command::ask;
    line.ask.what = what;
    check_offload(line.ask.offload, name);
  });
  return command;
}

}  // namespace

void add_ask(CLI::App& app, CommandLine& line) {
  using What = AskArguments::What;
  CLI::App* fill = add_question(app, line, "fill-mask", "fill in the masked words of a text with a model such as BERT",
                                What::fill_mask);
  fill->add_option("--top", line.ask.top, "number of tokens to name for each masked one; default: 5")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24).description("whole number"));
  add_question(app, line, "classify", "tell the class of a text with a model of classes", What::classify);
  CLI::App* embed = add_question(app, line, "embed", "the vector that a model makes of a text", What::embed);
  embed->add_option("--pooling", line.ask.pooling, "of all tokens, or of one: mean, first, last; default: mean")
      ->check(CLI::IsMember({"mean", "first", "last"}));
}

}  // namespace caravan::app

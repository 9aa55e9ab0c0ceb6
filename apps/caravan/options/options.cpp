#include "apps/caravan/options/options.h"

#include <algorithm>
#include <set>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/caravan/options/option_groups.h"
#include "apps/caravan/options/option_table.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan::app {
namespace {

/// The command that the words name, or the command of a command.
const CLI::App& named_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

/// "caravan tokenizer train".
std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : full_name(*parent) + " " + command.get_name();
}

/// CLI11 says "Could not convert: NAME = VALUE", where an option takes a number.
std::string conversion_text(const std::string& error) {
  const size_t name = error.find(": "), value = error.find(" = ");
  if (name == std::string::npos || value == std::string::npos) return error;
  return fmt::format("{}: '{}' is not a valid number", error.substr(name + 2, value - name - 2),
                     error.substr(value + 3));
}

/// Refuses the words that CLI11 left over, with the nearest option or command.
[[noreturn]] void refuse_extras(const CLI::App& app, const std::string& message) {
  const CLI::App& where = named_command(app);
  std::vector<std::string> known;
  for (const CLI::Option* option : where.get_options()) {
    if (!option->get_lnames().empty()) known.push_back("--" + option->get_lnames().front());
  }
  for (const CLI::App* command : where.get_subcommands([](const CLI::App*) { return true; }))
    known.push_back(command->get_name());
  const std::vector<std::string> words = app.remaining(true);
  const std::string word = words.empty() ? "" : words.front().substr(0, words.front().find('='));
  static const std::set<std::string> kAxes{"--dp", "--pp", "--tp", "--cp", "--ep"};
  if (message.empty() && kAxes.contains(word) && where.get_option_no_throw("recipe") != nullptr) {
    const char* ranks = std::ranges::find(known, "--ranks") == known.end() ? "" : ", with --ranks N or more";
    throw UsageError({"command line", word, "is a key of the recipe", "",
                      fmt::format("use --set mesh.{}=N{}", word.substr(2), ranks)});
  }
  throw UsageError({"command line", word, message.empty() ? "not understood" : message, "",
                    word.empty() ? "see caravan --help" : "the nearest is '" + nearest(word, known) + "'; see --help"});
}

/// Adds all commands. They write to `line`, which outlives the parsing.
void add_commands(CLI::App& app, CommandLine& line) {
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  app.allow_extras();
  for (const auto add :
       {add_train, add_run, add_new, add_generate, add_ask, add_evaluate, add_hugging_face, add_inspect, add_plan,
        add_prove, add_reports, add_tokenizer, add_data, add_cache, add_bench, add_doctor, add_about}) {
    add(app, line);
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) command->allow_extras();
}

void collect(const CLI::App& app, const std::string& name, std::vector<CommandEntry>& table) {
  CommandEntry entry{.name = name, .help = app.get_description(), .options = {}, .commands = {}};
  for (const CLI::Option* option : app.get_options()) {
    const bool is_word = option->get_lnames().empty();
    entry.options.push_back({.name = is_word ? option->get_single_name() : "--" + option->get_lnames().front(),
                             .help = option->get_description(),
                             .takes_value = option->get_items_expected_max() > 0,
                             .is_word = is_word});
  }
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* command : commands) entry.commands.push_back(command->get_name());
  table.push_back(std::move(entry));
  for (const CLI::App* command : commands) {
    collect(*command, name.empty() ? command->get_name() : name + " " + command->get_name(), table);
  }
}

const char* const kWhat = "Caravan trains large models over many processes and machines.";

}  // namespace

std::vector<CommandEntry> option_table() {
  CommandLine line{};
  CLI::App app(kWhat, "caravan");
  add_commands(app, line);
  std::vector<CommandEntry> table;
  collect(app, "", table);
  return table;
}

CLI::Validator not_empty() {
  return {[](const std::string& text) { return text.empty() ? "must not be empty" : ""; }, "", "not empty"};
}

std::optional<CommandLine> parse_command_line(int argc, const char* const* argv, std::string& text) {
  CommandLine line{};
  CLI::App app(kWhat, "caravan");
  add_commands(app, line);
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  split_run(words, line.run);
  std::ranges::reverse(words);  // the order that CLI11 takes
  try {
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    text = app.help();
    return std::nullopt;
  } catch (const CLI::CallForVersion&) {
    text = std::string(kVersion) + "\n";
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (!app.remaining(true).empty()) refuse_extras(app, "");
    const bool is_number = dynamic_cast<const CLI::ConversionError*>(&error) != nullptr;
    throw UsageError({"command line", "", is_number ? conversion_text(error.what()) : error.what(), "",
                      "see " + full_name(named_command(app)) + " --help"});
  }
  if (!app.remaining(true).empty()) refuse_extras(app, "");
  return line;
}

}  // namespace caravan::app

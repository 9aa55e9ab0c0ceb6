#include "apps/caravan/options.h"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "apps/caravan/option_groups.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan::app {
namespace {

const char* const kVersion = "caravan 0.1.0";

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

}  // namespace

CLI::Validator not_empty() {
  return {[](const std::string& text) { return text.empty() ? "must not be empty" : ""; }, "", "not empty"};
}

std::optional<CommandLine> parse_command_line(int argc, const char* const* argv, std::string& text) {
  CommandLine line{};
  CLI::App app("Caravan trains large models over many processes and machines.", "caravan");
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  app.allow_extras();
  for (const auto add : {add_train, add_run, add_new, add_generate, add_evaluate, add_hugging_face, add_inspect,
                         add_prove, add_reports, add_tokenizer, add_data, add_cache, add_bench, add_doctor}) {
    add(app, line);
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) command->allow_extras();
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
    throw UsageError({"command line", "", error.what(), "", "see caravan --help"});
  }
  if (!app.remaining(true).empty()) refuse_extras(app, "");
  return line;
}

}  // namespace caravan::app

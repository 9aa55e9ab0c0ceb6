#include "apps/caravan/commands/prompts.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <poll.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/byte_order_mark.h"
#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/data/files/json_lines.h"
#include "caravan/data/unicode/utf8.h"
#include "caravan/recipe/recipe.h"

namespace caravan::app {
namespace {

bool is_pipe_with_data() {
  struct stat in {};
  pollfd entry{STDIN_FILENO, POLLIN, 0};
  return fstat(STDIN_FILENO, &in) == 0 && S_ISFIFO(in.st_mode) && poll(&entry, 1, 0) == 1 &&
         (entry.revents & POLLIN) != 0;
}

std::string standard_input() {
  std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

/// Standard input is read only on request: in a shell loop or under a service manager it is not meant for this program
/// and may never end.
std::string one_prompt(const GenerateArguments& arguments) {
  if (arguments.prompt == "-") return standard_input();
  if (arguments.prompt) return *arguments.prompt;
  if (is_pipe_with_data())
    std::fputs("caravan: standard input is not read; --prompt - reads the prompt from it\n", stderr);
  return Recipe().sample.prompt;
}

PromptText of_line(std::string text, const std::filesystem::path& path, int64_t number) {
  return {std::move(text), fmt::format("{}:{}", path.string(), number)};
}

std::vector<PromptText> prompts_of_text(const std::filesystem::path& path) {
  const MappedFile file(path, "generate");
  check_utf8(file.text(), "generate", path.string());
  std::vector<PromptText> prompts;
  int64_t number = 0;
  std::string_view rest = file.text();
  if (rest.starts_with(kByteOrderMark)) rest.remove_prefix(kByteOrderMark.size());
  while (!rest.empty()) {
    ++number;
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) prompts.push_back(of_line(std::string(line), path, number));
  }
  return prompts;
}

std::vector<PromptText> prompts_of_json(const std::filesystem::path& path) {
  std::vector<PromptText> prompts;
  const MappedFile file(path, "generate");
  LineSplitter lines([&](int64_t number, std::string_view line) {
    const nlohmann::json object = parse_json_line(line, path, number);
    if (!object.contains("messages")) {
      prompts.push_back(of_line(text_field(object, "prompt", path, number), path, number));
      return;
    }
    // With the order of members, which templates write.
    const auto ordered = nlohmann::ordered_json::parse(line);
    PromptText& chat = prompts.emplace_back(of_line("", path, number));
    chat.messages = ordered.at("messages").dump();
    if (ordered.contains("tools")) chat.tools = ordered.at("tools").dump();
  });
  lines.put(file.text());
  lines.finish();
  return prompts;
}

/// If the user names the field of the texts, there are second texts only if their field is named too.
std::vector<AskedText> texts_of_json(const std::filesystem::path& path, const AskArguments& arguments) {
  const std::string field = arguments.field.value_or("text"), second = arguments.pair_field.value_or("pair");
  if (field == second) {
    throw UsageError({"ask", "--pair-field", fmt::format("{} is the field of the first text", second), "",
                      "name that of the second text, or leave it out"});
  }
  std::vector<AskedText> texts;
  for_each_json_line(path, [&](int64_t number, const nlohmann::json& object) {
    const PromptText line = of_line(text_field(object, field, path, number), path, number);
    const bool is_pair = arguments.pair_field || (!arguments.field && object.contains(second));
    texts.push_back({line.text, is_pair ? text_field(object, second, path, number) : "", line.where});
  });
  return texts;
}

}  // namespace

std::vector<AskedText> read_texts(const AskArguments& arguments) {
  if (arguments.texts.empty()) {
    if (!arguments.text)
      throw UsageError({"ask", "--text", "no text is given", "", "give one: --text TEXT, or --texts FILE"});
    return {{arguments.text == "-" ? standard_input() : *arguments.text, arguments.pair, ""}};
  }
  const std::filesystem::path path = arguments.texts;
  std::vector<AskedText> texts;
  const bool is_json = path.extension() == ".jsonl";
  if (!is_json && (arguments.field || arguments.pair_field)) {
    throw UsageError({"ask", arguments.field ? "--field" : "--pair-field",
                      fmt::format("{} has no fields", path.string()), "",
                      "leave it out, or give JSON lines in a .jsonl file"});
  }
  if (is_json) {
    texts = texts_of_json(path, arguments);
  } else {
    for (PromptText& line : prompts_of_text(path)) texts.push_back({std::move(line.text), "", std::move(line.where)});
  }
  if (texts.empty()) throw DataError({"ask", path.string(), "holds no text", "", "write one text per line"});
  return texts;
}

std::vector<PromptText> read_prompts(const GenerateArguments& arguments) {
  if (arguments.prompts.empty()) return {{one_prompt(arguments), ""}};
  const std::filesystem::path path = arguments.prompts;
  const bool is_json = path.extension() == ".jsonl";
  std::vector<PromptText> prompts = is_json ? prompts_of_json(path) : prompts_of_text(path);
  if (prompts.empty()) {
    throw DataError({"generate", path.string(), "holds no prompt", "",
                     is_json ? R"(write a line {"prompt": "some text"}, or {"messages": [..]}, for each)"
                             : "write one prompt per line"});
  }
  return prompts;
}

}  // namespace caravan::app

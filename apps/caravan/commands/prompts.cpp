#include "apps/caravan/commands/prompts.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <poll.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

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

/// Standard input is read only on request: in a shell loop or under a service manager it is not meant for this program
/// and may never end.
std::string one_prompt(const GenerateArguments& arguments) {
  if (arguments.prompt == "-") {
    std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }
  if (arguments.prompt) return *arguments.prompt;
  if (is_pipe_with_data())
    std::fputs("caravan: standard input is not read; --prompt - reads the prompt from it\n", stderr);
  return Recipe().sample.prompt;
}

std::vector<std::string> prompts_of_text(const std::filesystem::path& path) {
  const MappedFile file(path, "generate");
  check_utf8(file.text(), "generate", path.string());
  std::vector<std::string> prompts;
  for (std::string_view rest = file.text(); !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) prompts.emplace_back(line);
  }
  return prompts;
}

std::vector<std::string> prompts_of_json(const std::filesystem::path& path) {
  std::vector<std::string> prompts;
  for_each_json_line(path, [&](int64_t number, const nlohmann::json& object) {
    prompts.push_back(text_field(object, "prompt", path, number));
  });
  return prompts;
}

}  // namespace

std::vector<std::string> read_prompts(const GenerateArguments& arguments) {
  if (arguments.prompts.empty()) return {one_prompt(arguments)};
  const std::filesystem::path path = arguments.prompts;
  const bool is_json = path.extension() == ".jsonl";
  std::vector<std::string> prompts = is_json ? prompts_of_json(path) : prompts_of_text(path);
  if (prompts.empty()) {
    throw DataError({"generate", path.string(), "holds no prompt", "",
                     is_json ? R"(write a line {"prompt": "some text"} for each)" : "write one prompt per line"});
  }
  return prompts;
}

}  // namespace caravan::app

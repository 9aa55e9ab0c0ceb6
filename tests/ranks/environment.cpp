#include "tests/ranks/environment.h"

#include <unistd.h>

namespace caravan::testing {

std::vector<std::string> rank_environment(int rank, int ranks, int port,
                                          const std::vector<std::pair<std::string, std::string>>& more) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    // GTEST_ variables are meant for this process only: shards, XML output.
    if (!text.starts_with("GTEST_")) variables.push_back(text);
  }
  const auto set = [&](const std::string& name, const std::string& value) {
    std::erase_if(variables, [&](const std::string& text) { return text.starts_with(name + "="); });
    variables.push_back(name + "=" + value);
  };
  set("RANK", std::to_string(rank));
  set("LOCAL_RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(ranks));
  set("LOCAL_WORLD_SIZE", std::to_string(ranks));
  set("MASTER_ADDR", "127.0.0.1");
  set("CARAVAN_STORE_PORT", std::to_string(port));
  for (const auto& [name, value] : more) set(name, value);
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace caravan::testing

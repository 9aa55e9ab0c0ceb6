#include "apps/caravan/commands/chat_prompts.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/caravan/commands/model_ranks.h"
#include "caravan/base/error.h"
#include "caravan/data/chat/chat_template.h"
#include "caravan/formats/huggingface/chat_files.h"
#include "caravan/generate/chat.h"

namespace caravan::app {
namespace {

using Json = nlohmann::ordered_json;

void refuse_chats(const GenerateArguments& arguments, const LanguageModel& model,
                  const std::vector<PromptText>& prompts) {
  for (const PromptText& prompt : prompts) {
    if (prompt.messages.empty()) continue;
    if (!arguments.raw) refuse_without_template(model);
    throw UsageError({"generate", "--raw", "continues texts, and these are messages", prompt.where,
                      "leave it out, or give the field \"prompt\""});
  }
  if (arguments.system) refuse_without_template(model);
}

std::string rendered(const GenerateArguments& arguments, const ChatTemplate& chat, const PromptText& prompt) {
  const std::string where = prompt.where.empty() ? "prompt" : prompt.where;
  Json messages = first_messages(arguments);
  if (prompt.messages.empty()) {
    messages.push_back({{"role", "user"}, {"content", prompt.text}});
    return chat.prompt(messages, nullptr, where);
  }
  const Json given = Json::parse(prompt.messages);
  const Json tools = prompt.tools.empty() ? Json() : Json::parse(prompt.tools);
  if (!arguments.system || !given.is_array() || given.empty()) return chat.prompt(given, tools, where);
  if (given.front().is_object() && given.front().value("role", Json()) == "system") {
    throw UsageError({"generate", "--system", "is a second message of the system", where,
                      "leave it out, or remove the one of the file"});
  }
  messages.insert(messages.end(), given.begin(), given.end());
  return chat.prompt(messages, tools, where);
}

}  // namespace

Json first_messages(const GenerateArguments& arguments) {
  Json messages = Json::array();
  if (arguments.system) messages.push_back({{"role", "system"}, {"content", *arguments.system}});
  return messages;
}

ModelPrompts model_prompts(const GenerateArguments& arguments, const LanguageModel& model, Communicator& world,
                           const std::vector<PromptText>& prompts, const ContinuationOptions& options) {
  ModelPrompts made{.are_chats = !arguments.raw && has_chat_template(model.text().files), .prompts = {}};
  if (!made.are_chats) {
    refuse_chats(arguments, model, prompts);
    for (const PromptText& prompt : prompts) made.prompts.push_back({prompt.text, options});
    return made;
  }
  const auto render = [&] {
    const auto chat = model.chat_template();
    Json all{{"turn_end", chat->turn_end()}, {"texts", Json::array()}};
    for (const PromptText& prompt : prompts) all["texts"].push_back(rendered(arguments, *chat, prompt));
    return all;
  };
  const Json all = json_of_rank_0(world, render, "prompts");
  for (const Json& text : all.at("texts")) {
    made.prompts.push_back(answer_prompt(text, all.at("turn_end").get<std::string>(), model.tokenizer(), options));
  }
  return made;
}

}  // namespace caravan::app

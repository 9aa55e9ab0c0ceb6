#include "caravan/data/chat_template.h"

#include <minja.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"

namespace caravan {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse_chat(const std::string& where, std::string fact, std::string action) {
  throw DataError({"data", where, std::move(fact), "", std::move(action)});
}

/// Throws DataError unless it is a list of messages with a role and a content.
void check_messages(const nlohmann::json& messages, const std::string& where) {
  if (!messages.is_array() || messages.empty()) {
    refuse_chat(where, "its messages are no list, or an empty one", "give [{\"role\": .., \"content\": ..}, ..]");
  }
  bool has_answer = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    const nlohmann::json& message = messages[i];
    const bool has_role = message.is_object() && message.contains("role") && message["role"].is_string();
    if (!has_role) {
      refuse_chat(where, fmt::format("message {} has no role", i), "give {\"role\": .., \"content\": ..}");
    }
    const bool has_content =
        message.contains("content") && (message["content"].is_string() || message.contains("tool_calls"));
    if (!has_content) {
      refuse_chat(where, fmt::format("message {} has no content that is a string", i),
                  "give {\"role\": .., \"content\": ..}");
    }
    has_answer |= message["role"] == "assistant";
  }
  if (!has_answer) refuse_chat(where, "has no message of the assistant, and so nothing to learn", "leave it out");
}

}  // namespace

struct ChatTemplate::Parsed {
  std::shared_ptr<minja::TemplateNode> root;
};

std::string RenderedChat::to_json() const {
  return nlohmann::json{{"text", text}, {"answers", answers}}.dump(-1, ' ', false,
                                                                   nlohmann::json::error_handler_t::replace);
}

RenderedChat RenderedChat::from_json(std::string_view json) {
  const nlohmann::json object = nlohmann::json::parse(json);
  return {object.at("text").get<std::string>(), object.at("answers").get<std::vector<std::pair<size_t, size_t>>>()};
}

ChatTemplate::ChatTemplate(std::string source, const std::string& file, std::string bos, std::string eos)
    : source_(std::move(source)), file_(file), bos_(std::move(bos)), eos_(std::move(eos)) {
  const minja::Options options{.trim_blocks = true, .lstrip_blocks = true, .keep_trailing_newline = false};
  try {
    parsed_ = std::make_unique<Parsed>(Parsed{minja::Parser::parse(source_, options)});
  } catch (const std::exception& error) {
    refuse_chat(file_, fmt::format("is a chat template that cannot be rendered: {}", error.what()),
                "use a template without what it names, by data.chat_template");
  }
}

ChatTemplate::~ChatTemplate() = default;

std::string ChatTemplate::render_raw(const Json& messages, const Json& tools, bool adds_prompt,
                                     const std::string& where) const {
  Json values{{"messages", messages}, {"add_generation_prompt", adds_prompt}, {"bos_token", bos_}, {"eos_token", eos_}};
  if (!tools.is_null()) values["tools"] = tools;
  try {
    return parsed_->root->render(minja::Context::make(minja::Value(values)));
  } catch (const std::exception& error) {
    refuse_chat(where, fmt::format("cannot be written by the chat template {}: {}", file_, error.what()),
                "change the messages, or data.chat_template");
  }
}

RenderedChat ChatTemplate::render(const nlohmann::json& messages, const nlohmann::json& tools,
                                  const std::string& where) const {
  check_messages(messages, where);
  const Json all = Json::parse(messages.dump());
  const Json with_tools = Json::parse(tools.dump());
  RenderedChat chat{.text = render_raw(all, with_tools, false, where), .answers = {}};
  Json until = Json::array();
  for (const Json& message : all) {
    const std::string before = message["role"] == "assistant" ? render_raw(until, with_tools, true, where) : "";
    until.push_back(message);
    if (message["role"] != "assistant") continue;
    const std::string after = until.size() == all.size() ? chat.text : render_raw(until, with_tools, false, where);
    if (!after.starts_with(before) || !chat.text.starts_with(after)) {
      refuse_chat(where,
                  fmt::format("message {} changes what the chat template {} writes before it", until.size() - 1, file_),
                  "use a template that writes messages one after the other, by data.chat_template");
    }
    chat.answers.emplace_back(before.size(), after.size());
  }
  return chat;
}

}  // namespace caravan

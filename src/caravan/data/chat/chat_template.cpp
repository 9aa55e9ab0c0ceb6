#include "caravan/data/chat/chat_template.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/data/chat/template_channel.h"
#include "caravan/data/chat/template_process.h"
#include "caravan/data/unicode/utf8.h"

namespace caravan {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSpace = " \t\r\n";
constexpr const char* kFromShareGpt =
    R"(convert them: jq -c '{messages: [.conversations[] | {role: ({human: "user", gpt: "assistant"}[.from])"
    R"( // .from), content: .value}]}' FILE > chats.jsonl)";
constexpr const char* kOtherTemplate = "use another template, by data.chat_template";

[[noreturn]] void refuse_chat(const std::string& where, std::string fact, std::string action) {
  throw DataError({"data", where, std::move(fact), "", std::move(action)});
}

/// Throws DataError unless it is a list of messages with a role and a content. Returns whether one is the assistant's.
bool check_messages(const Json& messages, const std::string& where) {
  if (!messages.is_array() || messages.empty()) {
    refuse_chat(where, "its messages are not a list, or an empty one", "give [{\"role\": .., \"content\": ..}, ..]");
  }
  bool has_answer = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    const bool has_role = message.is_object() && message.contains("role") && message["role"].is_string();
    if (message.is_object() && message.contains("from") && message.contains("value")) {
      refuse_chat(where, "has messages of ShareGPT's form, {\"from\": .., \"value\": ..}", kFromShareGpt);
    }
    if (!has_role) {
      refuse_chat(where, fmt::format("message {} has no role", i), "give {\"role\": .., \"content\": ..}");
    }
    const bool has_content =
        message.contains("content") && (message["content"].is_string() || message.contains("tool_calls"));
    if (!has_content) {
      refuse_chat(where, fmt::format("message {} has no content that is a string", i),
                  "give {\"role\": .., \"content\": ..}");
    }
    const Json& content = message["content"];
    if (content.is_string() && utf8_error(content.get_ref<const std::string&>()) != kNoUtf8Error) {
      refuse_chat(where, fmt::format("message {} is not UTF-8", i), "convert it, for example with iconv");
    }
    has_answer |= message["role"] == "assistant";
  }
  return has_answer;
}

bool is_blank(const Json& value) {
  if (!value.is_string()) return value.empty();
  return value.get_ref<const std::string&>().find_first_not_of(kSpace) == std::string::npos;
}

/// How many of the assistant's messages have nothing that a template could write; of the last alone if `is_last_alone`.
int64_t count_empty(const Json& messages, bool is_last_alone) {
  int64_t count = 0;
  for (auto message = messages.rbegin(); message != messages.rend(); ++message) {
    if (message->at("role") != "assistant") continue;
    bool is_empty = true;
    for (const auto& [name, value] : message->items()) is_empty &= name == "role" || is_blank(value);
    count += is_empty ? 1 : 0;
    if (is_last_alone) break;
  }
  return count;
}

/// The reason alone: minja repeats the source, a line of some kilobytes, for each block around the place.
std::string reason_of(const Json& said) {
  const std::string error = said.at("error").get<std::string>();
  return error.substr(0, error.find(":\n"));
}

/// What `text` has after the last `content`, without white space at its ends.
std::string after_last(std::string_view content, std::string_view text) {
  const size_t at = text.rfind(content);
  if (at == std::string_view::npos) return "";
  text.remove_prefix(at + content.size());
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(kSpace) + 1 - first));
}

}  // namespace

/// The answer of the template process for a chat.
struct ChatTemplate::Answer {
  Json said;
  std::string text;
};

std::string RenderedChat::to_json() const {
  Json object{{"answers", answers}, {"text", text}};  // in this order: runs know their chats by a hash of it
  if (has_last_alone) object["last_alone"] = true;
  return object.dump();
}

RenderedChat RenderedChat::from_json(std::string_view text) {
  const Json object = Json::parse(text);
  return {object.at("text").get<std::string>(), object.at("answers").get<std::vector<std::pair<size_t, size_t>>>(),
          object.value("last_alone", false), 0};
}

ChatTemplate::ChatTemplate(std::string source, std::string file, std::string bos, std::string eos)
    : source_(std::move(source)), file_(std::move(file)), bos_(std::move(bos)), eos_(std::move(eos)) {
  if (source_.size() > kMostTemplateBytes) {
    refuse_budget(fmt::format("has {} bytes, of which a template may have {}", source_.size(), kMostTemplateBytes), "");
  }
  start();
  // A template may refuse this chat, but not exceed its budgets.
  const std::string said = "Hello";
  const Json messages{{{"role", "user"}, {"content", "Hi"}}, {{"role", "assistant"}, {"content", said}}};
  turn_end_ = after_last(said, ask(Part::chat, messages, nullptr, "").text);
}

ChatTemplate::~ChatTemplate() = default;

void ChatTemplate::refuse_budget(const std::string& excess, const std::string& where) const {
  throw UsageError({"data", file_, "is a chat template that " + excess, where, kOtherTemplate});
}

void ChatTemplate::start() const {
  process_ = std::make_unique<TemplateProcess>();
  const Json start{{"source", source_}, {"bos", bos_}, {"eos", eos_}};
  process_->send(start.dump(-1, ' ', false, Json::error_handler_t::replace));
  const std::optional<std::string> said = process_->receive();
  if (!said) refuse_budget(std::exchange(process_, nullptr)->take_end(), "");
  const Json answer = Json::parse(*said);
  if (answer.contains("budget")) refuse_budget("exceeds its budget of " + answer["budget"].get<std::string>(), "");
  if (!answer.contains("error")) return;
  refuse_chat(file_, fmt::format("is a chat template that cannot be rendered: {}", reason_of(answer)),
              "use a template without what it names, by data.chat_template");
}

ChatTemplate::Answer ChatTemplate::ask(Part part, const Json& messages, const Json& tools,
                                       const std::string& where) const {
  const std::lock_guard lock(mutex_);
  if (process_ == nullptr) start();
  const std::string chat = Json{{"messages", messages}, {"tools", tools}, {"prompt", part == Part::prompt}}.dump();
  if (chat.size() > kMostChatBytes) {
    refuse_chat(where,
                fmt::format("is a chat of {}, of which {} are rendered at most",
                            format_bytes(static_cast<int64_t>(chat.size())), format_bytes(kMostChatBytes)),
                "split it, or leave it out");
  }
  process_->send(chat);
  const std::optional<std::string> said = process_->receive();
  std::optional<std::string> text = said ? process_->receive() : std::nullopt;
  if (!text) refuse_budget(std::exchange(process_, nullptr)->take_end(), where);
  Answer answer{Json::parse(*said), std::move(*text)};
  if (!answer.said.contains("budget")) return answer;
  if (answer.said["budget"] == "time") {
    refuse_budget(fmt::format("takes more than {} s of processor time for a chat", kChatSeconds), where);
  }
  const bool is_output = answer.said["budget"] == "output";
  refuse_budget(fmt::format("takes more than {} of {}",
                            format_bytes(static_cast<int64_t>(is_output ? kMostRenderedBytes : kTemplateMemory)),
                            answer.said["budget"].get<std::string>()),
                where);
}

RenderedChat ChatTemplate::render(const Json& messages, const Json& tools, const std::string& where) const {
  if (!check_messages(messages, where)) {
    refuse_chat(where, "has no message of the assistant, and so nothing to learn",
                "leave it out, or set data.skip_bad_lines = true");
  }
  Answer answer = ask(Part::chat, messages, tools, where);
  if (answer.said.contains("changed")) {
    refuse_chat(where,
                fmt::format("message {} changes what the chat template {} writes before it",
                            answer.said["changed"].get<int64_t>(), file_),
                "use a template that writes messages one after the other, by data.chat_template");
  }
  const auto answers = answer.said.value("answers", std::vector<std::pair<size_t, size_t>>());
  const bool has_last_alone = answer.said.value("rewrites", false);
  return {checked_text(std::move(answer), where), answers, has_last_alone, count_empty(messages, has_last_alone)};
}

std::string ChatTemplate::prompt(const Json& messages, const Json& tools, const std::string& where) const {
  check_messages(messages, where);
  return checked_text(ask(Part::prompt, messages, tools, where), where);
}

std::string ChatTemplate::checked_text(Answer answer, const std::string& where) const {
  if (answer.said.contains("error")) {
    refuse_chat(where, fmt::format("cannot be written by the chat template {}: {}", file_, reason_of(answer.said)),
                "change the messages, or data.chat_template");
  }
  if (const size_t at = utf8_error(answer.text); at != kNoUtf8Error) {
    refuse_chat(where,
                fmt::format("is not UTF-8 from byte {} on once it is rendered: the chat template {} cuts a character",
                            at, file_),
                "use another template, by data.chat_template");
  }
  return std::move(answer.text);
}

}  // namespace caravan

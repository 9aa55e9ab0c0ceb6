#include "caravan/data/chat/chat_line.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/data/files/json_lines.h"

namespace caravan {
namespace {

/// Null: the line has none.
const nlohmann::ordered_json* share_gpt_of(const nlohmann::ordered_json& object) {
  const nlohmann::ordered_json* said = find_field(object, "conversations");
  const bool is_it = said != nullptr && said->is_array() && !said->empty() && said->front().contains("from");
  return is_it ? said : nullptr;
}

}  // namespace

RenderedChat rendered_chat(const nlohmann::json& object, std::string_view line, const TextFormat& format,
                           const std::filesystem::path& file, int64_t number) {
  // Templates write tools and their parameters in the order of the file.
  const auto ordered = nlohmann::ordered_json::parse(line);
  const nlohmann::ordered_json* messages = find_field(ordered, format.field);
  if (messages == nullptr) messages = share_gpt_of(ordered);  // which render refuses with its conversion
  if (messages == nullptr) json_field(object, format.field, file, number);
  return format.chat->render(*messages, ordered.value("tools", nlohmann::ordered_json()),
                             fmt::format("{}:{}", file.string(), number));
}

void refuse_text_for_chats(const std::filesystem::path& file) {
  throw DataError({"data", file.string(), "has no JSON lines, and so no chats", "",
                   "give a .jsonl file with a list of messages in each line, or a table of them"});
}

ChatCounts counts_of(const RenderedChat& chat) {
  return {.last_alone = chat.has_last_alone ? 1 : 0,
          .answers = static_cast<int64_t>(chat.answers.size()),
          .empty = chat.num_empty};
}

std::vector<std::string> notes_of(const ChatCounts& chats) {
  std::vector<std::string> notes;
  if (const int64_t empty = chats.empty; empty > 0) {
    notes.push_back(fmt::format("{} of {} answers of chats {} empty: only what ends {} is learned", empty,
                                chats.answers, empty == 1 ? "is" : "are", empty == 1 ? "it" : "them"));
  }
  if (const int64_t count = chats.last_alone; count > 0) {
    notes.push_back(fmt::format(
        "{} only: the chat template rewrites what is before a message",
        count == 1 ? "1 chat learns its last answer" : fmt::format("{} chats learn their last answer", count)));
  }
  return notes;
}

void check_answers(const std::string& text, const ChatCounts& chats) {
  if (chats.answers == 0 || chats.empty < chats.answers) return;
  throw DataError({"data", text, fmt::format("has chats whose answers are all empty: {} of them", chats.answers), "",
                   "give the messages of the assistant some content"});
}

}  // namespace caravan

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

}  // namespace caravan

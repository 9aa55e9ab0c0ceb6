#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "caravan/data/chat/chat_template.h"
#include "caravan/data/files/text_file.h"

namespace caravan {

/// The chat in line `number` of `file`, which is `object`: the messages in format.field, with the tools beside them, as
/// format.chat writes them. Throws as ChatTemplate::render, and DataError naming file and line without that field.
RenderedChat rendered_chat(const nlohmann::json& object, std::string_view line, const TextFormat& format,
                           const std::filesystem::path& file, int64_t number);

/// Throws DataError for a plain text in place of chats.
[[noreturn]] void refuse_text_for_chats(const std::filesystem::path& file);

ChatCounts counts_of(const RenderedChat& chat);

/// What the user should know of chats: how many answers are empty, and how many chats learn their last one only.
std::vector<std::string> notes_of(const ChatCounts& chats);

/// Throws DataError naming `text` if all answers of its chats are empty.
void check_answers(const std::string& text, const ChatCounts& chats);

}  // namespace caravan

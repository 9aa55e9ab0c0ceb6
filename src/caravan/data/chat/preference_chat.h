#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "caravan/data/files/record.h"

namespace caravan {

class ChatTemplate;

/// A preference between two answers of a chat, from a line of JSON lines whose fields have messages: the chat template
/// writes them as text, `first` up to its prompt for a reply, `second` and `third` from there to the end of what it
/// writes for the last message. Without a field for the prompt, the prompt is what both lists of messages begin with.
/// `tools` beside them is passed to the template. Throws DataError naming file and line for messages of another form,
/// lists without a common beginning or without an answer after it, and as ChatTemplate::render.
Record rendered_preference(std::string_view line, const RecordFields& fields, const ChatTemplate& chat,
                           const std::filesystem::path& file, int64_t number);

}  // namespace caravan

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace caravan {

// The protocol between ChatTemplate and the program caravan-template, which runs templates: frames over a socket. A
// frame is its length in 8 bytes, followed by that many bytes.
//
// The parent sends {"source", "bos", "eos"}, and gets one frame: {}, or {"error": why the template cannot be parsed}.
// Then it sends chats, {"messages": [..], "tools": null or [..], "prompt": whether it asks for the prompt of a reply},
// and gets two frames for each: one of the following, and the text.
//   {"answers": [[begin, end], ..]}; with "rewrites", if the template rewrites what is before a message, so that only
//     the last answer is as it was asked for; of a prompt {}
//   {"error": why the template refuses the messages}
//   {"changed": index of the message that changes the text before it}
//   {"budget": the budget that the template exceeds}
// A template that exceeds another budget ends the program with a signal that identifies the budget.

/// Budgets of a template.
inline constexpr size_t kMostTemplateBytes = size_t{1} << 20;  ///< of its source
inline constexpr int64_t kTemplateSeconds = 3;                 ///< of processor time, per rendering
inline constexpr int64_t kChatSeconds = 12;                    ///< of processor time, for all answers of a chat
inline constexpr size_t kMostChatBytes = size_t{64} << 20;     ///< of the messages of a chat, as JSON
inline constexpr size_t kTemplateMemory = size_t{1} << 30;
inline constexpr size_t kTemplateStack = size_t{96} << 20;  ///< below the 128 MiB that Linux keeps free for a stack
inline constexpr size_t kMostRenderedBytes = size_t{64} << 20;

/// Returns false if the peer has ended.
bool send_frame(int socket, std::string_view frame);
/// Nothing if the peer has ended.
std::optional<std::string> receive_frame(int socket);

}  // namespace caravan

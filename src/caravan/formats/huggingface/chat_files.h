#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "caravan/data/chat/chat_template.h"
#include "caravan/formats/huggingface/text_settings.h"

namespace caravan {

/// The name of the file of a chat template in a folder of Hugging Face, and in a run.
inline constexpr const char* kChatTemplateFile = "chat_template.jinja";

/// Whether `files`, those of TextSettings, have a chat template: chat_template.jinja, or a text, or a template named
/// "default", in tokenizer_config.json.
bool has_chat_template(const std::map<std::string, std::string>& files);

/// That template, with the special tokens of tokenizer_config.json; null if there is none. `folder` is where the files
/// are from, for messages. `own`: a file whose template is used in place of theirs; "": none. Throws as ChatTemplate.
std::shared_ptr<const ChatTemplate> chat_template_of(const std::map<std::string, std::string>& files,
                                                     const std::filesystem::path& folder,
                                                     const std::filesystem::path& own = {});

/// The special token that ends an answer: the first token of `turn_end` (ChatTemplate::turn_end); nothing if that is no
/// special one.
std::optional<int32_t> turn_end_token(std::string_view turn_end, const Tokenizer& tokenizer);

/// Settings whose generation_config.json ends texts at that token too, as other programs expect of a model with a chat
/// template. The same settings if there is no template or no such token. `folder` as for chat_template_of, and it
/// throws the same.
TextSettings with_ends_of_turns(TextSettings text, const Tokenizer& tokenizer, const std::filesystem::path& folder);

}  // namespace caravan

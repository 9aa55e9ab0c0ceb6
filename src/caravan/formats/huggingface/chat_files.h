#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "caravan/data/chat/chat_template.h"

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

}  // namespace caravan

#include "caravan/formats/huggingface/chat_files.h"

#include <nlohmann/json.hpp>

#include "caravan/base/system/file.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;

constexpr const char* kConfigFile = "tokenizer_config.json";

nlohmann::json tokenizer_config_of(const Files& files) {
  const auto found = files.find(kConfigFile);
  if (found == files.end()) return nlohmann::json::object();
  nlohmann::json config = nlohmann::json::parse(found->second, nullptr, false);
  return config.is_object() ? config : nlohmann::json::object();
}

/// The text of a special token in tokenizer_config.json: "</s>", or {"content": "</s>", ..}.
std::string token_text(const nlohmann::json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  return found->is_object() ? found->value("content", "") : "";
}

/// The template in tokenizer_config.json: a text, or several by name, one of which is the default.
std::string template_of(const nlohmann::json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  for (const nlohmann::json& each : found->is_array() ? *found : nlohmann::json::array()) {
    if (each.is_object() && each.value("name", "") == "default") return each.value("template", "");
  }
  return "";
}

/// A template and the name of its file.
std::pair<std::string, const char*> find_template(const Files& files, const nlohmann::json& config) {
  const auto found = files.find(kChatTemplateFile);
  if (found != files.end() && !found->second.empty()) return {found->second, kChatTemplateFile};
  return {template_of(config), kConfigFile};
}

}  // namespace

bool has_chat_template(const Files& files) { return !find_template(files, tokenizer_config_of(files)).first.empty(); }

std::shared_ptr<const ChatTemplate> chat_template_of(const Files& files, const fs::path& folder, const fs::path& own) {
  const nlohmann::json config = tokenizer_config_of(files);
  auto [source, name] = find_template(files, config);
  std::string file = (folder / name).string();
  if (!own.empty()) {
    file = own.string();
    source = MappedFile(own, "data").text();
  }
  if (source.empty()) return nullptr;
  return std::make_shared<ChatTemplate>(std::move(source), file, token_text(config, "bos_token"),
                                        token_text(config, "eos_token"));
}

}  // namespace caravan

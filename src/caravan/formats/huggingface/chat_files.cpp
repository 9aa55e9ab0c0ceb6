#include "caravan/formats/huggingface/chat_files.h"

#include <algorithm>
#include <utility>
#include <vector>

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

std::optional<int32_t> turn_end_token(std::string_view turn_end, const Tokenizer& tokenizer) {
  const std::vector<int32_t> ids = tokenizer.encode(turn_end);
  return ids.empty() || !tokenizer.is_special(ids.front()) ? std::nullopt : std::optional(ids.front());
}

TextSettings with_ends_of_turns(TextSettings text, const Tokenizer& tokenizer, const fs::path& folder) {
  const auto chat = chat_template_of(text.files, folder);
  const auto token = chat == nullptr ? std::nullopt : turn_end_token(chat->turn_end(), tokenizer);
  if (!token) return text;
  const GenerationConfig before = text.generation();
  std::vector<int64_t> ends = before.end.value_or(std::vector<int64_t>(text.tokens.end.begin(), text.tokens.end.end()));
  if (std::ranges::find(ends, *token) != ends.end()) return text;
  ends.push_back(*token);
  std::string& file = text.files[kGenerationConfigFile];
  auto config = file.empty() ? nlohmann::ordered_json::object() : nlohmann::ordered_json::parse(file);
  if (file.empty()) {  // other programs do not read config.json then
    if (text.tokens.begin) config["bos_token_id"] = *text.tokens.begin;
    if (text.tokens.pad) config["pad_token_id"] = *text.tokens.pad;
  }
  config["eos_token_id"] = ends;
  file = config.dump(2) + "\n";
  return text;
}

}  // namespace caravan

#include <map>

#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/data/chat/chat_template.h"
#include "caravan/formats/huggingface/text_settings.h"
#include "caravan/train/dataset/dataset.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

std::shared_ptr<const ChatTemplate> find_chat_template(const Recipe::Data& data, const DataFolders& folders) {
  std::map<std::string, std::string> files;  // beside the tokenizer
  fs::path folder;
  if (!data.tokenizer.empty() && data.tokenizer != "bytes") {
    folder = find_file(data.tokenizer, folders).parent_path();
    files = read_text_files(folder);
  }
  nlohmann::json config = nlohmann::json::parse(files["tokenizer_config.json"], nullptr, false);
  if (!config.is_object()) config = nlohmann::json::object();
  std::string source, file;
  if (!data.chat_template.empty()) {
    file = find_file(data.chat_template, folders).string();
    source = MappedFile(file, "data").text();
  } else if (!files["chat_template.jinja"].empty()) {
    file = (folder / "chat_template.jinja").string();
    source = files["chat_template.jinja"];
  } else {
    file = (folder / "tokenizer_config.json").string();
    source = template_of(config);
  }
  if (source.empty()) {
    throw DataError({"data", folder.empty() ? "data.format" : folder.string(),
                     "has no chat template: chats cannot be written as text", "",
                     "start from a model that has one (train.init_from), or set data.chat_template to a file"});
  }
  return std::make_shared<ChatTemplate>(std::move(source), file, token_text(config, "bos_token"),
                                        token_text(config, "eos_token"));
}

}  // namespace caravan

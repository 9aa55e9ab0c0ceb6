#include "caravan/formats/huggingface/text_settings.h"

#include <algorithm>
#include <optional>

#include <nlohmann/json.hpp>

#include "caravan/base/system/file.h"
#include "caravan/formats/huggingface/chat_files.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

const char* const kTokenizerConfig = "tokenizer_config.json";
const char* const kTextFiles[] = {kGenerationConfigFile, kTokenizerConfig, "special_tokens_map.json",
                                  kChatTemplateFile};

std::string tokenizer_config(const Tokenizer& tokenizer, const ModelConfig& model) {
  nlohmann::json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"model_max_length", std::max(model.context, model.source_context)}};
  // Without it transformers returns no token types, except from tokenizer classes of particular models.
  if (model.token_types > 0) config["model_input_names"] = {"input_ids", "token_type_ids", "attention_mask"};
  const auto name = [&](const char* key, std::optional<int32_t> id) {
    if (!id) return;
    // Only a token that its text identifies: the bytes of others need not even be UTF-8.
    const std::string text(tokenizer.token_bytes(*id));
    if (tokenizer.id_of(text) == id) config[key] = text;
  };
  name("eos_token", tokenizer.end_of_text());
  name("mask_token", tokenizer.mask_token());
  name("pad_token", tokenizer.pad_token());
  name("cls_token", tokenizer.cls_token());
  name("sep_token", tokenizer.sep_token());
  name("unk_token", tokenizer.unk_token());
  return config.dump(2) + "\n";
}

}  // namespace

GenerationConfig TextSettings::generation() const {
  const auto file = files.find(kGenerationConfigFile);
  return file == files.end() ? GenerationConfig{} : parse_generation_config(file->second, kGenerationConfigFile);
}

SpecialTokens special_tokens(const Tokenizer& tokenizer) {
  SpecialTokens tokens;
  if (const auto end = tokenizer.end_of_text()) {
    tokens.begin = *end;
    tokens.end = {*end};
  }
  if (const auto pad = tokenizer.pad_token()) tokens.pad = *pad;
  return tokens;
}

std::map<std::string, std::string> read_text_files(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const char* name : kTextFiles) {
    std::error_code error;
    if (fs::exists(folder / name, error)) files[name] = MappedFile(folder / name, "import").text();
  }
  return files;
}

std::map<std::string, std::string> read_tokenizer_files(const fs::path& folder) {
  std::map<std::string, std::string> files = read_text_files(folder);
  files.erase(kGenerationConfigFile);
  return files;
}

void write_text_files(const fs::path& folder, const std::map<std::string, std::string>& files,
                      const Tokenizer& tokenizer, const ModelConfig& model) {
  for (const char* name : kTextFiles) {
    std::error_code error;
    if (!files.contains(name)) fs::remove(folder / name, error);
    if (error) throw_file_error("export", folder / name, "cannot be removed", error.value());
  }
  for (const auto& [name, content] : files) write_file_durably(folder / name, content, "export");
  if (!files.contains(kTokenizerConfig)) {
    write_file_durably(folder / kTokenizerConfig, tokenizer_config(tokenizer, model), "export");
  }
}

}  // namespace caravan

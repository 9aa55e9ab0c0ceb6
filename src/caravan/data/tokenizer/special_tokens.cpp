#include "caravan/data/tokenizer/special_tokens.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/json_reader.h"
#include "caravan/base/system/file.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKeys[] = {"eos_token", "mask_token", "pad_token", "cls_token", "sep_token", "unk_token"};

void add_tokens(const fs::path& path, std::map<std::string, std::string>& tokens) {
  std::error_code error;
  if (!fs::exists(path, error)) return;
  const MappedFile file(path, "tokenizer");
  const std::string name = path.string();
  check_json_depth(file.text(), name, "tokenizer");
  const nlohmann::json config = nlohmann::json::parse(file.text(), nullptr, /*allow_exceptions=*/false);
  const JsonReader json(config, "", name, "tokenizer");
  if (!config.is_object()) json.refuse("is not a JSON object", "restore the file from the model's folder");
  for (const char* key : kKeys) {
    const JsonReader token = json[key];
    if (!token.is_null()) tokens.emplace(key, token.value().is_object() ? token["content"].string() : token.string());
  }
}

}  // namespace

std::map<std::string, std::string> read_special_tokens(const fs::path& folder) {
  std::map<std::string, std::string> tokens;
  add_tokens(folder / "tokenizer_config.json", tokens);
  add_tokens(folder / "special_tokens_map.json", tokens);
  return tokens;
}

void refuse_sentencepiece(const fs::path& path) {
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  const fs::path folder = is_folder ? path : path.parent_path();
  fs::path model = path.extension() == ".model" ? path : "";
  if (model.empty() && !fs::exists(is_folder ? path / "tokenizer.json" : path, error)) {
    for (const char* name : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model"}) {
      if (model.empty() && fs::exists(folder / name, error)) model = folder / name;
    }
  }
  if (model.empty()) return;
  const std::string place = folder.empty() ? "." : folder.string();
  throw DataError({.op = "tokenizer",
                   .subject = model.string(),
                   .fact = "is a model of SentencePiece, which is read once it has been converted to a tokenizer.json",
                   .action = fmt::format("python -c \"from transformers import AutoTokenizer as T; "
                                         "T.from_pretrained('{}').save_pretrained('{}')\", and name {}",
                                         place, place, (folder / "tokenizer.json").string())});
}

}  // namespace caravan

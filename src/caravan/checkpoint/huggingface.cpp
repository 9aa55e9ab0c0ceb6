#include "caravan/checkpoint/huggingface.h"

#include <map>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/file.h"
#include "caravan/checkpoint/tensor_file.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

[[noreturn]] void refuse(const fs::path& file, const std::string& fact, const std::string& action) {
  throw DataError({"import", file.string(), fact, "", action});
}

/// The weight files: the one there is, or those an index names.
std::set<std::string> weight_files(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / "model.safetensors", error)) return {"model.safetensors"};
  const fs::path index = folder / "model.safetensors.index.json";
  if (!fs::exists(index, error)) {
    refuse(folder, "holds no model.safetensors", "save it with model.save_pretrained(.., safe_serialization=True)");
  }
  const MappedFile file(index, "import");
  const json root = json::parse(file.text(), nullptr, false);
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object()) {
    refuse(index, "is no index: it has no weight_map", "fetch the folder again");
  }
  std::set<std::string> names;
  for (const auto& [tensor, name] : root["weight_map"].items()) {
    const std::string text = name.is_string() ? name.get<std::string>() : "";
    if (text.empty() || text.find('/') != std::string::npos)
      refuse(index, tensor + " lies in no file", "fetch the folder again");
    names.insert(text);
  }
  return names;
}

NamedTensors read_weights(const fs::path& folder) {
  NamedTensors weights;
  for (const std::string& name : weight_files(folder)) {
    const SafetensorsFile file(folder / name);
    for (const auto& [tensor, entry] : file.tensors()) {
      at::Tensor value = read_tensor(file, tensor);
      weights.emplace_back(tensor, value.is_floating_point() ? value.to(at::kFloat) : value);
    }
  }
  return weights;
}

/// The tokenizer with the end of text that config.json names, where its own file does not say.
Tokenizer read_tokenizer(const fs::path& folder, const json& config) {
  Tokenizer tokenizer = Tokenizer::load(folder / "tokenizer.json");
  if (tokenizer.end_of_text() || !config.contains("eos_token_id")) return tokenizer;
  const json& end = config["eos_token_id"];
  const json& id = end.is_array() && !end.empty() ? end.front() : end;
  if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= tokenizer.vocab_size()) return tokenizer;
  return tokenizer.with_end_of_text(id.get<int32_t>());
}

}  // namespace

SpecialTokens special_tokens(const Tokenizer& tokenizer) {
  SpecialTokens tokens;
  if (tokenizer.end_of_text()) tokens.begin = tokens.end = *tokenizer.end_of_text();
  return tokens;
}

HuggingFaceModel read_huggingface(const fs::path& folder) {
  const fs::path config_file = folder / "config.json";
  const MappedFile text(config_file, "import");
  const ModelConfig config = parse_huggingface_config(text.text(), config_file.string());
  Tokenizer tokenizer = read_tokenizer(folder, json::parse(text.text()));
  if (tokenizer.vocab_size() > config.vocabulary) {
    refuse(folder / "tokenizer.json",
           fmt::format("has {} tokens, the model {}", tokenizer.vocab_size(), config.vocabulary),
           "take the tokenizer.json that belongs to the model");
  }
  return {config, from_huggingface(config, read_weights(folder)), std::move(tokenizer)};
}

void write_huggingface(const fs::path& folder, const ModelConfig& config, const NamedTensors& parameters,
                       const Tokenizer& tokenizer) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw_file_error("export", folder, "cannot be made", error.value());
  write_tensors(folder / "model.safetensors", to_huggingface(config, parameters), {{"format", "pt"}});
  write_file_durably(folder / "config.json", huggingface_config(config, special_tokens(tokenizer)), "export");
  tokenizer.save(folder / "tokenizer.json");
  json tokenizer_config{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"model_max_length", config.context}};
  if (tokenizer.end_of_text()) tokenizer_config["eos_token"] = tokenizer.token_bytes(*tokenizer.end_of_text());
  write_file_durably(folder / "tokenizer_config.json", tokenizer_config.dump(2) + "\n", "export");
}

}  // namespace caravan

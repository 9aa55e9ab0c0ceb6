#include "caravan/formats/huggingface/huggingface.h"

#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/json_reader.h"
#include "caravan/base/system/file.h"
#include "caravan/formats/safetensors/tensor_file.h"
#include "caravan/module/finite.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const char* const kWeightIndex = "model.safetensors.index.json";

[[noreturn]] void refuse(const fs::path& file, const std::string& fact, const std::string& action) {
  throw DataError({"import", file.string(), fact, "", action});
}

/// The names of the weight files: one, or the shards that an index lists.
std::set<std::string> weight_files(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / "model.safetensors", error)) return {"model.safetensors"};
  const fs::path index = folder / kWeightIndex;
  if (!fs::exists(index, error)) {
    refuse(folder, "has no model.safetensors", "save it with model.save_pretrained(.., safe_serialization=True)");
  }
  const MappedFile file(index, "import");
  check_json_depth(file.text(), index.string(), "import");
  const json root = json::parse(file.text(), nullptr, false);
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object()) {
    refuse(index, "has no weight_map", "download the folder again");
  }
  std::set<std::string> names;
  for (const auto& [tensor, name] : root["weight_map"].items()) {
    const std::string text = name.is_string() ? name.get<std::string>() : "";
    if (text.empty() || text.find('/') != std::string::npos)
      refuse(index, tensor + " has no file name of this folder", "download the folder again");
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

/// Removes the shards of weights, model-NNNNN-of-NNNNN.safetensors, and their index.
void remove_shards(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> shards;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const bool is_shard = name.starts_with("model-") && name.ends_with(".safetensors");
    if (is_shard || name == kWeightIndex) shards.push_back(entry.path());
  }
  for (const fs::path& shard : shards) {
    fs::remove(shard, error);
    if (error) throw_file_error("export", shard, "cannot be removed", error.value());
  }
}

/// Where the tokenizer's own files name no end-of-text token, config.json does.
Tokenizer read_tokenizer(const fs::path& folder, const SpecialTokens& tokens) {
  Tokenizer tokenizer = Tokenizer::load(folder / "tokenizer.json");
  if (tokenizer.end_of_text() || tokens.end.empty()) return tokenizer;
  const int64_t end = tokens.end.front();
  return end >= 0 && end < tokenizer.vocab_size() ? tokenizer.with_end_of_text(static_cast<int32_t>(end)) : tokenizer;
}

}  // namespace

HuggingFaceModel read_huggingface(const fs::path& folder) {
  const fs::path config_file = folder / "config.json";
  const MappedFile json(config_file, "import");
  const ModelConfig config = parse_huggingface_config(json.text(), config_file.string());
  TextSettings text{parse_special_tokens(json.text(), config_file.string()), read_text_files(folder)};
  text.generation();  // refuses a damaged file before the weights are read
  Tokenizer tokenizer = read_tokenizer(folder, text.tokens);
  if (tokenizer.vocab_size() > config.vocabulary) {
    refuse(folder / "tokenizer.json",
           fmt::format("has {} tokens, the model {}", tokenizer.vocab_size(), config.vocabulary),
           "use the tokenizer.json that belongs to the model");
  }
  NamedTensors parameters = from_huggingface(config, read_weights(folder));
  for (const auto& [name, tensor] : parameters) {
    if (!all_finite(tensor)) {
      refuse(folder, name + " has values that are not finite", "use weights of a training that has not diverged");
    }
  }
  return {config, std::move(parameters), std::move(tokenizer), std::move(text)};
}

void write_huggingface(const fs::path& folder, const ModelConfig& config, const NamedTensors& parameters,
                       const Tokenizer& tokenizer, const TextSettings& text) {
  // Before anything is written: both refuse a model that transformers does not have.
  const std::string config_json = huggingface_config(config, text.tokens);
  const NamedTensors tensors = to_huggingface(config, parameters);
  create_folders("export", folder);
  write_tensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
  remove_shards(folder);
  write_file_durably(folder / "config.json", config_json, "export");
  tokenizer.save(folder / "tokenizer.json");
  write_text_files(folder, text.files, tokenizer, config.context);
}

}  // namespace caravan

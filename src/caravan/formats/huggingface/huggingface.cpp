#include "caravan/formats/huggingface/huggingface.h"

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/formats/huggingface/hf_folder.h"
#include "caravan/formats/safetensors/tensor_file.h"
#include "caravan/models/model.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

/// Removes the shards of weights, model-NNNNN-of-NNNNN.safetensors, and their index.
void remove_shards(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> shards;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const bool is_shard = name.starts_with("model-") && name.ends_with(".safetensors");
    if (is_shard || name == "model.safetensors.index.json") shards.push_back(entry.path());
  }
  for (const fs::path& shard : shards) {
    fs::remove(shard, error);
    if (error) throw_file_error("export", shard, "cannot be removed", error.value());
  }
}

/// Where the tokenizer's own files name no end-of-text token, config.json does.
Tokenizer read_tokenizer(const fs::path& folder, const SpecialTokens& tokens) {
  Tokenizer tokenizer = Tokenizer::load(tokenizer_file(folder));
  if (tokenizer.end_of_text() || tokens.end.empty()) return tokenizer;
  const int64_t end = tokens.end.front();
  return end >= 0 && end < tokenizer.vocab_size() ? tokenizer.with_end_of_text(static_cast<int32_t>(end)) : tokenizer;
}

}  // namespace

HuggingfaceFolder open_huggingface(const fs::path& folder, const OpenedHead& head) {
  const fs::path config_file = folder / "config.json";
  const MappedFile json(config_file, "import");
  ModelConfig config = read_huggingface_config(folder);
  if (head.new_classes > 0 && config.classes == 0) config.classes = head.new_classes;
  TextSettings text{parse_special_tokens(json.text(), config_file.string()), read_text_files(folder)};
  text.generation();  // refuses a damaged file before the weights are read
  Tokenizer tokenizer = read_tokenizer(folder, text.tokens);
  if (tokenizer.vocab_size() > config.vocabulary) {
    refuse_import(folder / "tokenizer.json",
                  fmt::format("has {} tokens, the model {}", tokenizer.vocab_size(), config.vocabulary),
                  "use the tokenizer.json that belongs to the model");
  }
  HuggingfaceWeights weights(folder, config, head.may_be_missing);
  ContentHasher hasher;
  hasher.update(json.text());
  hasher.update(weights.fingerprint().hex());
  return {config, std::move(tokenizer), std::move(text), std::move(weights), hasher.value()};
}

HuggingFaceModel read_huggingface(const fs::path& folder, bool may_lack_head) {
  HuggingfaceFolder from = open_huggingface(folder, {.may_be_missing = true});
  NamedTensors parameters;
  const Model model(from.config);
  for (const Parameter* parameter : model.parameters()) {
    const std::string& name = parameter->name();
    if (from.weights.has(name)) {
      parameters.emplace_back(name, from.weights.read(name));
    } else if (!may_lack_head) {
      refuse_base_model(folder, name);
    }
  }
  return {from.config, std::move(parameters), std::move(from.tokenizer), std::move(from.text)};
}

void refuse_base_model(const fs::path& folder, const std::string& missing) {
  refuse_import(folder, fmt::format("is a base model, without a head: it has no {}", missing),
                "use embed, or train it: train.init_from starts from it with a new head");
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
  write_text_files(folder, text.files, tokenizer, config);
}

}  // namespace caravan

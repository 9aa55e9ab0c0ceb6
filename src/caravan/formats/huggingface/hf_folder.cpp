#include "caravan/formats/huggingface/hf_folder.h"

#include <algorithm>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/json_reader.h"
#include "caravan/base/system/file.h"
#include "caravan/data/tokenizer/special_tokens.h"
#include "caravan/formats/huggingface/hf_config.h"
#include "caravan/formats/huggingface/hf_rows.h"
#include "caravan/formats/safetensors/safetensors.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

const char* const kWeights = "model.safetensors";
const char* const kIndex = "model.safetensors.index.json";

/// A tensor of one of the files; no bytes if none has it.
struct FoundTensor {
  SafetensorsEntry entry{};
  std::span<const std::byte> bytes{};
};

FoundTensor find_tensor(const std::vector<SafetensorsFile>& files, const std::string& name) {
  const auto file = std::ranges::find_if(files, [&](const SafetensorsFile& each) { return each.has(name); });
  return file == files.end() ? FoundTensor{} : FoundTensor{file->at(name), file->bytes(name)};
}

/// Whether both are there and are not the same. The first values tell: where only later ones differ, a head that
/// repeats its embedding is damaged, which is noticed when it is read.
bool has_head_of_its_own(const fs::path& folder, const ModelConfig& config) {
  constexpr size_t kCompared = 4096;
  const std::string embedding = "embedding.token.weight";
  const HuggingfaceTable table = huggingface_table(config, {{embedding, {config.vocabulary, config.width}}});
  std::vector<SafetensorsFile> files;
  for (const std::string& name : weight_files(folder)) files.emplace_back(folder / name);
  const FoundTensor head = find_tensor(files, table.head),
                    of_embedding = find_tensor(files, table.rows.front().theirs.front());
  if (head.bytes.empty() || of_embedding.bytes.empty()) return false;
  if (head.entry.dtype != of_embedding.entry.dtype || head.entry.shape != of_embedding.entry.shape) return true;
  const size_t count = std::min(head.bytes.size(), kCompared);
  return !std::ranges::equal(head.bytes.first(count), of_embedding.bytes.first(count));
}

}  // namespace

void refuse_import(const fs::path& file, const std::string& fact, const std::string& action) {
  throw DataError({"import", file.string(), fact, "", action});
}

fs::path tokenizer_file(const fs::path& folder) {
  fs::path file = folder / "tokenizer.json";
  if (std::error_code error; fs::exists(file, error)) return file;
  refuse_sentencepiece(folder);
  refuse_import(file, "does not exist",
                "let transformers write it: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)");
}

std::set<std::string> weight_files(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / kWeights, error)) return {kWeights};
  const fs::path index = folder / kIndex;
  if (!fs::exists(index, error)) {
    refuse_import(folder, fmt::format("has no {}, nor {}", kWeights, kIndex),
                  "save it with model.save_pretrained, or download what is missing of it");
  }
  const MappedFile file(index, "import");
  check_json_depth(file.text(), index.string(), "import");
  const nlohmann::json root = nlohmann::json::parse(file.text(), nullptr, false);
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object()) {
    refuse_import(index, "has no weight_map", "download the folder again");
  }
  std::set<std::string> names;
  for (const auto& [tensor, name] : root["weight_map"].items()) {
    const std::string text = name.is_string() ? name.get<std::string>() : "";
    if (text.empty() || text.find('/') != std::string::npos)
      refuse_import(index, tensor + " has no file name of this folder", "download the folder again");
    if (names.insert(text).second && !fs::exists(folder / text, error)) {
      refuse_import(index, fmt::format("has {} in {}, which is not there", tensor, text), "download that file again");
    }
  }
  return names;
}

ModelConfig read_huggingface_config(const fs::path& folder) {
  const fs::path file = folder / "config.json";
  const MappedFile json(file, "import");
  ModelConfig config = parse_huggingface_config(json.text(), file.string());
  std::error_code error;
  const bool has_weights = fs::exists(folder / kWeights, error) || fs::exists(folder / kIndex, error);
  if (config.tie_embeddings && config.continues_texts() && has_weights && has_head_of_its_own(folder, config)) {
    config.tie_embeddings = false;
  }
  return config;
}

}  // namespace caravan

#include "caravan/formats/huggingface/hf_config.h"

#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/text.h"
#include "caravan/formats/huggingface/architectures/architecture_row.h"
#include "caravan/formats/huggingface/hf_reader.h"

namespace caravan {
namespace {

using Json = nlohmann::ordered_json;

/// What a file says of types that are near one of the rows, and are not among them.
std::string_view near_type(std::string_view type) {
  if (type == "gemma3") return "a model of texts and images; its text part alone is gemma3_text";
  if (type == "llama4") return "a model of texts and images";
  if (type == "phi") return "an earlier architecture than phi3: parallel branches, a bias of the head";
  return "";
}

const ArchitectureRow& read_row(const ConfigReader& in) {
  const std::string type = in.text_or("model_type", "");
  if (const ArchitectureRow* row = find_architecture(type)) return *row;
  std::vector<std::string> names;
  for (const ArchitectureRow& row : architectures()) names.push_back(row.name);
  const std::string_view about = near_type(type);
  in.refuse("model_type",
            fmt::format("is '{}'{}{}; the supported types are {}", type, about.empty() ? "" : ", ", about, join(names)),
            fmt::format("import a model of one of these types: the nearest is '{}'", nearest(type, names)));
}

}  // namespace

std::string huggingface_config(const ModelConfig& config, const SpecialTokens& tokens, std::string_view dtype) {
  Json out;
  const ArchitectureRow& row = architecture_of(config);
  out["architectures"] = {row.their_class};
  out["model_type"] = row.name;
  for (const ConfigColumn& column : row.columns) column.write(config, out);
  out["vocab_size"] = config.vocabulary;
  // For a missing key transformers uses its own default, an id of another tokenizer.
  out["bos_token_id"] = tokens.begin ? Json(*tokens.begin) : Json();
  out["eos_token_id"] = tokens.end.size() > 1 ? Json(tokens.end) : tokens.end.empty() ? Json() : Json(tokens.end[0]);
  out["pad_token_id"] = tokens.pad ? Json(*tokens.pad) : Json();
  out["initializer_range"] = 0.02;
  out["use_cache"] = true;
  out["dtype"] = dtype;
  return out.dump(2) + "\n";
}

ModelConfig parse_huggingface_config(std::string_view json, std::string_view file) {
  const Json parsed = parse_config_object(json, file);
  const ConfigReader in(parsed, "", file);
  if (in.find("quantization_config") != nullptr) {
    in.refuse("quantization_config", "says that the weights are quantized", "import the model before quantization");
  }
  const ArchitectureRow& row = read_row(in);
  ModelConfig config;
  set_architecture(config, row);
  for (const ConfigColumn& column : row.columns) column.read(in, config);
  config.vocabulary = in.count("vocab_size");
  validate_config(config, file);
  return config;
}

SpecialTokens parse_special_tokens(std::string_view json, std::string_view file) {
  const Json parsed = parse_config_object(json, file);
  const ConfigReader in(parsed, "", file);
  const ArchitectureRow& row = read_row(in);
  return {.begin = in.token_or("bos_token_id", row.begin),
          .end = in.tokens_or("eos_token_id", row.end),
          .pad = in.token_or("pad_token_id", std::nullopt)};
}

}  // namespace caravan

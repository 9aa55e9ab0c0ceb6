#include "caravan/formats/huggingface/hf_config.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
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

/// Their class of a model of the row: "LlamaForCausalLM" tells no classes apart.
std::string class_of(const ArchitectureRow& row, const ModelConfig& config) {
  if (config.classes == 0) return row.their_class;
  if (row.weights.classes.empty()) {
    throw UsageError({"export", "model.classes", fmt::format("{} with classes has no names here", row.name), "",
                      "train bert, gpt2, llama or a relative of it"});
  }
  const size_t end = std::min(row.their_class.find("For"), row.their_class.find("LMHead"));
  return fmt::format("{}{}", row.their_class.substr(0, end), kClassification);
}

/// Ends the classes of models with heads that no row has.
constexpr std::array<std::string_view, 6> kOtherHeads{"ForTokenClassification", "ForQuestionAnswering",
                                                      "ForMultipleChoice",      "ForNextSentencePrediction",
                                                      "DoubleHeadsModel",       "EncoderModel"};

/// The only one of `architectures`; "" if there is none.
std::string class_in(const ConfigReader& in) {
  const Json* names = in.find("architectures");
  const bool is_one = names != nullptr && names->is_array() && names->size() == 1 && names->front().is_string();
  return is_one ? names->front().get<std::string>() : "";
}

/// The names of the classes, in order, of a model of which `architectures` says that it has some; else none.
std::vector<std::string> read_classes(const Json& parsed, const ConfigReader& in) {
  const std::string name = class_in(in);
  for (const std::string_view other : kOtherHeads) {
    if (!name.ends_with(other)) continue;
    in.refuse(
        "architectures", fmt::format("is {}, whose head is not supported", name),
        "import a model that continues texts, predicts masked tokens or tells classes of texts apart, or the base "
        "model alone");
  }
  if (!name.ends_with(kClassification)) return {};
  const std::string problem = in.text_or("problem_type", "single_label_classification");
  if (problem != "single_label_classification") {
    in.refuse("problem_type", fmt::format("is '{}', which is not supported", problem),
              "import a model of texts that have one class each");
  }
  std::vector<std::string> classes;
  const auto table = in.below("id2label");
  for (int64_t i = 0; table && table->find(std::to_string(i).c_str()) != nullptr; ++i) {
    classes.push_back(table->text_or(std::to_string(i).c_str(), ""));
  }
  if (table && classes.size() != parsed["id2label"].size()) {
    in.refuse("id2label", "does not number the classes from 0", "correct the file");
  }
  if (table && classes.empty()) in.refuse("id2label", "names no class", "leave it out, or name the classes");
  const int64_t count = in.count_or("num_labels", 2);
  constexpr int64_t kMost = 1 << 20;
  if (count > kMost) in.refuse("num_labels", fmt::format("is above {}", kMost), "correct the file");
  for (int64_t i = 0; !table && i < count; ++i) classes.push_back(unnamed_class(i));
  if (classes.size() == 1) {
    in.refuse(table ? "id2label" : "num_labels",
              "has one label, as a model of numbers (regression), which is not supported",
              "import a model of two classes or more");
  }
  const std::set<std::string> distinct(classes.begin(), classes.end());
  if (distinct.size() < classes.size()) in.refuse("id2label", "gives two classes one name", "correct the file");
  return classes;
}

}  // namespace

std::string unnamed_class(int64_t number) { return fmt::format("LABEL_{}", number); }

std::vector<std::string> classes_of_records(const SpecialTokens& tokens) {
  std::vector<std::string> numbers;
  for (size_t i = 0; i < tokens.classes.size(); ++i) {
    if (tokens.classes[i] != unnamed_class(static_cast<int64_t>(i))) return tokens.classes;
    numbers.push_back(std::to_string(i));
  }
  return numbers;
}

void write_classes(const std::vector<std::string>& given, int64_t count, Json& out) {
  Json names = Json::object(), ids = Json::object();
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    const std::string name = at < given.size() ? given[at] : unnamed_class(i);
    names[std::to_string(i)] = name;
    ids[name] = i;
  }
  out["id2label"] = names;
  out["label2id"] = ids;
  out["problem_type"] = "single_label_classification";
}

std::string huggingface_config(const ModelConfig& config, const SpecialTokens& tokens, std::string_view dtype) {
  Json out;
  const ArchitectureRow& row = architecture_of(config);
  out["architectures"] = {class_of(row, config)};
  out["model_type"] = row.name;
  for (const ConfigColumn& column : row.columns) column.write(config, out);
  out["vocab_size"] = config.vocabulary;
  // For a missing key transformers uses its own default, an id of another tokenizer.
  out["bos_token_id"] = tokens.begin ? Json(*tokens.begin) : Json();
  out["eos_token_id"] = tokens.end.size() > 1 ? Json(tokens.end) : tokens.end.empty() ? Json() : Json(tokens.end[0]);
  out["pad_token_id"] = tokens.pad ? Json(*tokens.pad) : Json();
  if (config.has_encoder()) {
    const auto start = tokens.decoder_start ? tokens.decoder_start : tokens.pad ? tokens.pad : row.decoder_start;
    out["decoder_start_token_id"] = start ? Json(*start) : Json();
  }
  if (tokens.prompt_end) out[kPromptEnd] = *tokens.prompt_end;
  if (config.classes > 0) write_classes(tokens.classes, config.classes, out);
  out["initializer_range"] = 0.02;
  out["use_cache"] = true;
  out["dtype"] = dtype;
  return out.dump(2) + "\n";
}

ModelConfig parse_huggingface_config(std::string_view json, std::string_view file) {
  const Json parsed = parse_config_object(json, file);
  const ConfigReader in(parsed, "", file);
  if (const Json* quantization = in.find("quantization_config")) {
    const bool has_method = quantization->is_object() && quantization->contains("quant_method");
    const std::string method = has_method ? quantization->at("quant_method").dump() : "";
    in.refuse("quantization_config",
              "says that the weights are quantized" + (method.empty() ? "" : " by the method " + method),
              "import the model before quantization");
  }
  const ArchitectureRow& row = read_row(in);
  ModelConfig config;
  set_architecture(config, row);
  for (const ConfigColumn& column : row.columns) column.read(in, config);
  config.vocabulary = in.count("vocab_size");
  config.classes = static_cast<int64_t>(read_classes(parsed, in).size());
  if (config.classes > 0 && row.weights.classes.empty()) {
    in.refuse("architectures", fmt::format("says that a {} tells classes apart, which is not supported", row.name),
              "import a bert, gpt2, llama or a relative of it");
  }
  validate_config(config, file);
  return config;
}

SpecialTokens parse_special_tokens(std::string_view json, std::string_view file) {
  const Json parsed = parse_config_object(json, file);
  const ConfigReader in(parsed, "", file);
  const ArchitectureRow& row = read_row(in);
  const auto given_token = [&](const char* key, std::optional<int64_t> absent) {
    const auto id = in.token_or(key, absent);
    if (id && *id < 0) return std::optional<int64_t>();  // none
    const int64_t vocabulary = in.count("vocab_size");
    if (id && *id >= vocabulary) {
      in.refuse(key, fmt::format("is {}, but the model has {} tokens", *id, vocabulary), "correct the file");
    }
    return id;
  };
  const auto pad = in.token_or("pad_token_id", row.pad);
  // Runs of earlier versions started targets from the pad token, and did not say so.
  const auto start = in.has(kSettings) ? pad : row.decoder_start;
  return {.begin = in.token_or("bos_token_id", row.begin),
          .end = in.tokens_or("eos_token_id", row.end),
          .pad = pad,
          .decoder_start = row.base.has_encoder() ? given_token("decoder_start_token_id", start) : std::nullopt,
          .prompt_end = given_token(kPromptEnd, std::nullopt),
          .classes = read_classes(parsed, in)};
}

}  // namespace caravan

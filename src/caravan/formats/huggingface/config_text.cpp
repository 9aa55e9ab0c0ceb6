#include "caravan/formats/huggingface/config_text.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/formats/huggingface/architectures/architecture_row.h"
#include "caravan/formats/huggingface/hf_reader.h"
#include "caravan/nn/model_fields.h"

namespace caravan {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExperts = "moe";  // of earlier versions
constexpr const char* kAdapters = "lora";
constexpr const char* kAdaptsExperts = "experts";

/// As earlier versions wrote it.
MoeConfig read_moe(const ConfigReader& in) {
  MoeConfig moe{.experts = in.count("experts"), .top_k = in.count("top_k")};
  in.require("gates", {"softmax", "sigmoid"}, "");
  in.require("balance", {"sequence", "batch"}, "");
  moe.gates = in.text_or("gates", "") == "softmax" ? Gates::softmax : Gates::sigmoid;
  moe.balance = in.text_or("balance", "") == "sequence" ? BalanceScope::sequence : BalanceScope::batch;
  moe.normalize = in.flag_or("normalize", moe.normalize);
  moe.shared_hidden = in.count_or("shared_hidden", 0);
  moe.shared_gate = in.flag_or("shared_gate", moe.shared_gate);
  moe.capacity = in.real_or("capacity", moe.capacity);
  moe.balance_loss = in.real_or("balance_loss", moe.balance_loss);
  moe.z_loss = in.real_or("z_loss", moe.z_loss);
  return moe;
}

LoraConfig read_lora(const ConfigReader& in) {
  LoraConfig lora{.rank = in.count("rank"), .alpha = in.real_or("alpha", 0), .targets = {}};
  const auto read_list = [&](const char* key, std::vector<std::string>& list) {
    const auto* found = in.find(key);
    for (const auto& text : found != nullptr && found->is_array() ? *found : Json::array()) {
      if (!text.is_string()) in.refuse(key, "is not a list of strings", "restore the checkpoint");
      list.push_back(text.get<std::string>());
    }
  };
  read_list("targets", lora.targets);
  lora.dropout = in.real_or("dropout", 0);
  lora.rslora = in.flag_or("rslora", false);
  lora.dora = in.flag_or("dora", false);
  read_list("modules_to_save", lora.saved);
  lora.experts = in.flag_or(kAdaptsExperts, false);  // of an earlier version, where experts had no adapters
  return lora;
}

struct WriteField {
  const ModelConfig& config;
  template <class T>
  Json operator()(FieldAccess<T> access) const {
    return value_of(access, config);
  }
  Json operator()(const ModelField::Text& text) const { return text.get(config); }
};

/// Returns false for a value of another type, or none of the choices.
struct ReadField {
  const Json& value;
  ModelConfig& config;
  bool operator()(FieldAccess<int64_t> access) const {
    if (!value.is_number_integer()) return false;
    access(config) = value.get<int64_t>();
    return true;
  }
  bool operator()(FieldAccess<double> access) const {
    if (!value.is_number()) return false;
    access(config) = value.get<double>();
    return true;
  }
  bool operator()(FieldAccess<bool> access) const {
    if (!value.is_boolean()) return false;
    access(config) = value.get<bool>();
    return true;
  }
  bool operator()(const ModelField::Text& text) const {
    return value.is_string() && text.set(config, value.get_ref<const std::string&>());
  }
};

/// A checkpoint of a later version may have settings that this one does not know: none is ignored.
ModelConfig read_settings(const ConfigReader& in, const Json& settings, const std::string& name) {
  ModelConfig config;
  config.arch.name = name;
  std::vector<std::string> known;
  for (const ModelField& field : model_fields()) {
    known.push_back(field.key);
    const auto found = settings.find(field.key);
    if (found == settings.end()) continue;  // of an earlier version, whose models have the default
    try {
      if (std::visit(ReadField{*found, config}, field.access)) continue;
    } catch (const UsageError&) {  // layers, numbers
    }
    in.refuse(field.key, fmt::format("is {}", found->dump()), "restore the checkpoint");
  }
  for (const auto& [key, value] : settings.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    in.refuse(key, "is no setting of a model in this version",
              "use the version that wrote the checkpoint, or a later one");
  }
  return config;
}

}  // namespace

std::string config_text(const ModelConfig& config, const SpecialTokens& tokens) {
  Json settings = Json::object();
  for (const ModelField& field : model_fields()) settings[field.key] = std::visit(WriteField{config}, field.access);
  Json out{{"model_type", config.arch.name},
           {"vocab_size", config.vocabulary},
           {"bos_token_id", tokens.begin ? Json(*tokens.begin) : Json()},
           {"eos_token_id", tokens.end.empty() ? Json() : Json(tokens.end)},
           {"pad_token_id", tokens.pad ? Json(*tokens.pad) : Json()},
           {kSettings, settings}};
  if (tokens.decoder_start) out["decoder_start_token_id"] = *tokens.decoder_start;
  if (tokens.prompt_end) out[kPromptEnd] = *tokens.prompt_end;
  if (config.classes > 0) {
    out["architectures"] = {kClassification};
    write_classes(tokens.classes, config.classes, out);
  }
  const LoraConfig& lora = config.lora;
  if (lora.is_used()) {
    Json& adapters = out[kAdapters] = {
        {"rank", lora.rank}, {"alpha", lora.alpha}, {"targets", lora.targets}, {kAdaptsExperts, lora.experts}};
    if (lora.dropout > 0) adapters["dropout"] = lora.dropout;
    if (lora.rslora) adapters["rslora"] = true;
    if (lora.dora) adapters["dora"] = true;
    if (!lora.saved.empty()) adapters["modules_to_save"] = lora.saved;
  }
  return out.dump(2) + "\n";
}

ModelConfig parse_config_text(std::string_view json, std::string_view file) {
  const Json parsed = parse_config_object(json, file);
  const ConfigReader in(parsed, "", file);
  const auto settings = in.below(kSettings);
  ModelConfig config = settings ? read_settings(*settings, parsed[kSettings], in.text_or("model_type", ""))
                                : parse_huggingface_config(json, file);
  if (const auto experts = in.below(kExperts)) config.moe = read_moe(*experts);
  if (const auto adapters = in.below(kAdapters)) config.lora = read_lora(*adapters);
  validate_config(config, file);
  return config;
}

}  // namespace caravan

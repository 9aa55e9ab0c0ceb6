#include "caravan/nn/hf_config.h"

#include <initializer_list>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/json_reader.h"

namespace caravan {
namespace {

using Json = nlohmann::ordered_json;

void write_gpt2(const ModelConfig& config, Json& out) {
  out["architectures"] = {"GPT2LMHeadModel"};
  out["model_type"] = "gpt2";
  out["activation_function"] = "gelu_new";
  out["n_layer"] = config.layers;
  out["n_embd"] = config.width;
  out["n_head"] = config.heads;
  out["n_inner"] = config.hidden_width();
  out["n_positions"] = config.context;
  out["n_ctx"] = config.context;
  out["layer_norm_epsilon"] = config.norm_epsilon;
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) out[key] = config.dropout;
  out["scale_attn_weights"] = true;
  out["scale_attn_by_inverse_layer_idx"] = false;
}

void write_llama(const ModelConfig& config, Json& out) {
  out["architectures"] = {"LlamaForCausalLM"};
  out["model_type"] = "llama";
  out["hidden_act"] = "silu";
  out["num_hidden_layers"] = config.layers;
  out["hidden_size"] = config.width;
  out["num_attention_heads"] = config.heads;
  out["num_key_value_heads"] = config.num_kv_heads();
  out["head_dim"] = config.head_width();
  out["intermediate_size"] = config.hidden_width();
  out["max_position_embeddings"] = config.context;
  out["rms_norm_eps"] = config.norm_epsilon;
  out["rope_parameters"] = {{"rope_theta", config.rope_theta}, {"rope_type", "default"}};
  out["rope_theta"] = config.rope_theta;  // where transformers 4 looks
  out["attention_bias"] = false;
  out["mlp_bias"] = false;
  out["attention_dropout"] = config.dropout;
}

/// Reads the members of a config.json; errors name key and file.
class Reader {
 public:
  Reader(const Json& object, std::string prefix, std::string_view file)
      : object_(object), prefix_(std::move(prefix)), file_(file) {}

  [[noreturn]] void refuse(std::string_view key, std::string_view fact, std::string_view action) const {
    throw DataError(
        {"import", fmt::format("{}{}", prefix_, key), std::string(fact), std::string(file_), std::string(action)});
  }

  /// nullptr for a member that is missing or null.
  const Json* find(const char* key) const {
    const auto member = object_.find(key);
    return member == object_.end() || member->is_null() ? nullptr : &*member;
  }

  int64_t count(const char* key) const {
    if (find(key) == nullptr) refuse(key, "is missing", "take the config.json that belongs to the weights");
    return count_or(key, 0);
  }
  int64_t count_or(const char* key, int64_t absent) const {
    const Json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_number_integer() || *value < 1 || *value > int64_t{1} << 40) refuse_value(key, "a count above 0");
    return value->get<int64_t>();
  }
  double real_or(const char* key, double absent) const {
    const Json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_number()) refuse_value(key, "a number");
    return value->get<double>();
  }
  bool flag_or(const char* key, bool absent) const {
    const Json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_boolean()) refuse_value(key, "true or false");
    return value->get<bool>();
  }
  std::string text_or(const char* key, std::string_view absent) const {
    const Json* value = find(key);
    if (value == nullptr) return std::string(absent);
    if (!value->is_string()) refuse_value(key, "a string");
    return value->get<std::string>();
  }

  /// One id; nothing for null. A missing member has the id `absent`, unless the vocabulary ends before it.
  std::optional<int64_t> token_or(const char* key, std::optional<int64_t> absent) const {
    if (!object_.contains(key)) return absent && *absent < count("vocab_size") ? absent : std::nullopt;
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    return token(key, *value);
  }
  /// One id or a list of them.
  std::vector<int64_t> tokens_or(const char* key, int64_t absent) const {
    const Json* value = find(key);
    std::vector<int64_t> ids;
    if (value == nullptr || !value->is_array()) {
      if (const auto id = token_or(key, absent)) ids.push_back(*id);
      return ids;
    }
    for (const Json& one : *value) ids.push_back(token(key, one));
    return ids;
  }

  void require(const char* key, bool is, bool absent) const {
    if (flag_or(key, absent) == is) return;
    refuse(key, fmt::format("is {}, which is not supported", !is), "import a model without it");
  }
  void require(const char* key, std::initializer_list<std::string_view> known, std::string_view absent) const {
    const std::string text = text_or(key, absent);
    for (const std::string_view one : known) {
      if (text == one) return;
    }
    refuse(key, fmt::format("is '{}', which is not supported", text),
           fmt::format("import a model whose {} is {}", key, fmt::join(known, " or ")));
  }

 private:
  [[noreturn]] void refuse_value(const char* key, std::string_view kind) const {
    refuse(key, fmt::format("is {}, not {}", object_[key].dump(-1, ' ', true, Json::error_handler_t::replace), kind),
           "correct the file");
  }
  int64_t token(const char* key, const Json& value) const {
    // Some files say -1 for a token that a model does not have.
    if (!value.is_number_integer() || value < -1 || value > std::numeric_limits<int32_t>::max()) {
      refuse_value(key, "a token id");
    }
    return value.get<int64_t>();
  }

  const Json& object_;
  std::string prefix_;
  std::string_view file_;
};

ModelConfig read_gpt2(const Reader& in) {
  in.require("activation_function", {"gelu_new", "gelu_pytorch_tanh"}, "gelu_new");
  in.require("scale_attn_weights", true, true);
  in.require("scale_attn_by_inverse_layer_idx", false, false);
  in.require("add_cross_attention", false, false);
  ModelConfig config{.kind = ModelKind::gpt2};
  config.layers = in.count("n_layer");
  config.width = in.count("n_embd");
  config.heads = in.count("n_head");
  config.hidden = in.count_or("n_inner", 0);
  config.context = in.count("n_positions");
  config.norm_epsilon = in.real_or("layer_norm_epsilon", 1e-5);
  config.tie_embeddings = in.flag_or("tie_word_embeddings", true);
  config.dropout = in.real_or("attn_pdrop", 0.1);
  for (const char* key : {"embd_pdrop", "resid_pdrop"}) {
    if (const double dropout = in.real_or(key, 0.1); dropout != config.dropout) {
      in.refuse(key,
                fmt::format("is {}, but attn_pdrop is {}: Caravan has one dropout rate for the model", dropout,
                            config.dropout),
                "set all of them to the same value");
    }
  }
  return config;
}

void check_rope(const Reader& in) {
  in.require("rope_type", {"default"}, in.text_or("type", "default"));
  if (in.real_or("partial_rotary_factor", 1) != 1) {
    in.refuse("partial_rotary_factor", "is not 1: only a part of each head turns, which no model here computes",
              "import a model without it");
  }
}

ModelConfig read_llama(const Reader& in, std::string_view file) {
  in.require("hidden_act", {"silu", "swish"}, "silu");
  in.require("attention_bias", false, false);
  in.require("mlp_bias", false, false);
  ModelConfig config{.kind = ModelKind::llama};
  config.layers = in.count("num_hidden_layers");
  config.width = in.count("hidden_size");
  config.heads = in.count("num_attention_heads");
  config.kv_heads = in.count_or("num_key_value_heads", config.heads);
  config.hidden = in.count("intermediate_size");
  config.context = in.count("max_position_embeddings");
  config.norm_epsilon = in.real_or("rms_norm_eps", 1e-6);
  config.tie_embeddings = in.flag_or("tie_word_embeddings", false);
  config.dropout = in.real_or("attention_dropout", 0);
  config.rope_theta = in.real_or("rope_theta", 10000);
  if (config.width % config.heads == 0 && in.count_or("head_dim", config.head_width()) != config.head_width()) {
    in.refuse("head_dim",
              fmt::format("is {}, but hidden_size {} over {} heads is {}", in.count("head_dim"), config.width,
                          config.heads, config.head_width()),
              "import a model whose head_dim is hidden_size / num_attention_heads");
  }
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = in.find(key);
    if (rope == nullptr) continue;
    if (!rope->is_object()) in.refuse(key, "is not an object", "correct the file");
    const Reader members(*rope, fmt::format("{}.", key), file);
    check_rope(members);
    config.rope_theta = members.real_or("rope_theta", config.rope_theta);
  }
  return config;
}

Json parse_object(std::string_view json, std::string_view file) {
  check_json_depth(json, file, "import");
  Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object()) return parsed;
  throw DataError({"import", std::string(file), parsed.is_discarded() ? "is not JSON" : "is not a JSON object", "",
                   "give the folder of a model, with its config.json"});
}

}  // namespace

std::string huggingface_config(const ModelConfig& config, const SpecialTokens& tokens, std::string_view dtype) {
  Json out;
  if (config.kind == ModelKind::gpt2) {
    write_gpt2(config, out);
  } else {
    write_llama(config, out);
  }
  out["vocab_size"] = config.vocabulary;
  out["tie_word_embeddings"] = config.tie_embeddings;
  // For a missing key transformers takes its own default, an id of another tokenizer.
  out["bos_token_id"] = tokens.begin ? Json(*tokens.begin) : Json();
  out["eos_token_id"] = tokens.end.size() > 1 ? Json(tokens.end) : tokens.end.empty() ? Json() : Json(tokens.end[0]);
  out["pad_token_id"] = tokens.pad ? Json(*tokens.pad) : Json();
  out["initializer_range"] = 0.02;
  out["use_cache"] = true;
  out["dtype"] = dtype;
  return out.dump(2) + "\n";
}

ModelConfig parse_huggingface_config(std::string_view json, std::string_view file) {
  const Json parsed = parse_object(json, file);
  const Reader in(parsed, "", file);
  if (in.find("quantization_config") != nullptr) {
    in.refuse("quantization_config", "says that the weights are quantized", "import the model before quantization");
  }
  const std::string type = in.text_or("model_type", "");
  if (type != "gpt2" && type != "llama") {
    in.refuse("model_type", fmt::format("is '{}'; the supported types are gpt2 and llama", type),
              "import a GPT-2 or a Llama model");
  }
  ModelConfig config = type == "gpt2" ? read_gpt2(in) : read_llama(in, file);
  config.vocabulary = in.count("vocab_size");
  try {
    config.validate();
  } catch (const UsageError& error) {
    ErrorText text = error.text();
    throw DataError({"import", text.subject, text.fact, std::string(file), "correct the file"});
  }
  return config;
}

SpecialTokens parse_special_tokens(std::string_view json, std::string_view file) {
  const Json parsed = parse_object(json, file);
  const Reader in(parsed, "", file);
  const bool is_gpt2 = in.text_or("model_type", "") == "gpt2";
  return {.begin = in.token_or("bos_token_id", is_gpt2 ? 50256 : 1),
          .end = in.tokens_or("eos_token_id", is_gpt2 ? 50256 : 2),
          .pad = in.token_or("pad_token_id", std::nullopt)};
}

}  // namespace caravan

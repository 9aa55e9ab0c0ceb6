#include "caravan/nn/hf_config.h"

#include <initializer_list>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"

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

/// The members of a config.json, each complaint with its key and file.
class Reader {
 public:
  Reader(const Json& object, std::string prefix, std::string_view file)
      : object_(object), prefix_(std::move(prefix)), file_(file) {}

  [[noreturn]] void refuse(std::string_view key, std::string_view fact, std::string_view action) const {
    throw DataError(
        {"import", fmt::format("{}{}", prefix_, key), std::string(fact), std::string(file_), std::string(action)});
  }

  /// Null if it is missing, or null.
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

  void require(const char* key, bool is, bool absent) const {
    if (flag_or(key, absent) == is) return;
    refuse(key, fmt::format("is {}, which no model here computes", !is), "import a model without it");
  }
  void require(const char* key, std::initializer_list<std::string_view> known, std::string_view absent) const {
    const std::string text = text_or(key, absent);
    for (const std::string_view one : known) {
      if (text == one) return;
    }
    refuse(key, fmt::format("is '{}', which no model here computes", text),
           fmt::format("import a model whose {} is '{}'", key, *known.begin()));
  }

 private:
  [[noreturn]] void refuse_value(const char* key, std::string_view kind) const {
    refuse(key, fmt::format("is {}, not {}", object_[key].dump(-1, ' ', true, Json::error_handler_t::replace), kind),
           "repair the file");
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
      in.refuse(key, fmt::format("is {}, but attn_pdrop is {}: a model here has one dropout", dropout, config.dropout),
                "set all of them to one value");
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
              "import a model whose heads fill its width");
  }
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = in.find(key);
    if (rope == nullptr) continue;
    if (!rope->is_object()) in.refuse(key, "is not an object", "repair the file");
    const Reader members(*rope, fmt::format("{}.", key), file);
    check_rope(members);
    config.rope_theta = members.real_or("rope_theta", config.rope_theta);
  }
  return config;
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
  // Without these keys transformers would take its own defaults, ids of another tokenizer.
  out["bos_token_id"] = tokens.begin ? Json(*tokens.begin) : Json();
  out["eos_token_id"] = tokens.end ? Json(*tokens.end) : Json();
  out["pad_token_id"] = Json();
  out["initializer_range"] = 0.02;
  out["use_cache"] = true;
  out["dtype"] = dtype;
  return out.dump(2) + "\n";
}

ModelConfig parse_huggingface_config(std::string_view json, std::string_view file) {
  const Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    throw DataError({"import", std::string(file), parsed.is_discarded() ? "is not JSON" : "is not a JSON object", "",
                     "give the folder of a model, with its config.json"});
  }
  const Reader in(parsed, "", file);
  if (in.find("quantization_config") != nullptr) {
    in.refuse("quantization_config", "says that the weights are quantised", "import the model that it was made from");
  }
  in.require("model_type", {"gpt2", "llama"}, "");
  ModelConfig config = in.text_or("model_type", "") == "gpt2" ? read_gpt2(in) : read_llama(in, file);
  config.vocabulary = in.count("vocab_size");
  try {
    config.validate();
  } catch (const UsageError& error) {
    ErrorText text = error.text();
    throw DataError({"import", text.subject, text.fact, std::string(file), "repair the file"});
  }
  return config;
}

}  // namespace caravan

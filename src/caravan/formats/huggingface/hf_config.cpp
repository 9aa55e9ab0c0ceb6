#include "caravan/formats/huggingface/hf_config.h"

#include <array>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/formats/huggingface/hf_form.h"
#include "caravan/formats/huggingface/hf_reader.h"

namespace caravan {
namespace {

using Json = nlohmann::ordered_json;

/// transformers' defaults of missing keys, where its models differ. All other defaults are common.
struct FormDefaults {
  const char* architecture;
  int64_t kv_heads;  ///< 0: as many as heads
  double norm_epsilon = 1e-6;
  double rope_theta = 10000;
  std::optional<int64_t> begin{};
  std::optional<int64_t> end{};
};

const FormDefaults& defaults_of(HuggingfaceForm form) {
  static const std::array<FormDefaults, 5> all{{
      {.architecture = "GPT2LMHeadModel", .kv_heads = 0, .norm_epsilon = 1e-5, .begin = 50256, .end = 50256},
      {.architecture = "LlamaForCausalLM", .kv_heads = 0, .begin = 1, .end = 2},
      {.architecture = "Qwen2ForCausalLM", .kv_heads = 32},
      {.architecture = "MixtralForCausalLM",
       .kv_heads = 8,
       .norm_epsilon = 1e-5,
       .rope_theta = 1e6,
       .begin = 1,
       .end = 2},
      {.architecture = "Qwen2MoeForCausalLM", .kv_heads = 16},
  }};
  return all.at(static_cast<size_t>(form));
}

bool is_qwen(HuggingfaceForm form) { return form == HuggingfaceForm::qwen2 || form == HuggingfaceForm::qwen2_moe; }

void write_gpt2(const ModelConfig& config, Json& out) {
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

/// Common part of Llama, Qwen2 and their mixtures of experts.
void write_llama(const ModelConfig& config, Json& out) {
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
  out["rope_theta"] = config.rope_theta;  // read by transformers 4
  out["attention_dropout"] = config.dropout;
}

void write_experts(const MoeConfig& moe, const char* experts, Json& out) {
  out[experts] = moe.experts;
  out["num_experts_per_tok"] = moe.top_k;
  out["router_aux_loss_coef"] = moe.balance_loss;
  out["output_router_logits"] = false;
}

void write_qwen2_moe(const ModelConfig& config, Json& out) {
  write_experts(config.moe, "num_experts", out);
  out["moe_intermediate_size"] = config.hidden_width();
  out["shared_expert_intermediate_size"] = config.moe.shared_hidden;
  out["norm_topk_prob"] = config.moe.normalize;
  out["decoder_sparse_step"] = 1;
  out["mlp_only_layers"] = Json::array();
  out["qkv_bias"] = config.qkv_bias;
}

void write_form(HuggingfaceForm form, const ModelConfig& config, Json& out) {
  if (form == HuggingfaceForm::gpt2) return write_gpt2(config, out);
  write_llama(config, out);
  if (form == HuggingfaceForm::llama) {
    out["attention_bias"] = false;
    out["mlp_bias"] = false;
  }
  if (form == HuggingfaceForm::mixtral) {
    write_experts(config.moe, "num_local_experts", out);
    out["sliding_window"] = Json();
  }
  if (form == HuggingfaceForm::qwen2_moe) write_qwen2_moe(config, out);
  if (is_qwen(form)) out["use_sliding_window"] = false;
}

ModelConfig read_gpt2(const ConfigReader& in) {
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

double read_rope_theta(const ConfigReader& in, double absent) {
  double theta = in.real_or("rope_theta", absent);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto rope = in.below(key);
    if (!rope) continue;
    rope->require("rope_type", {"default"}, rope->text_or("type", "default"));
    rope->require("partial_rotary_factor", 1, 1, "only a part of each head turns");
    theta = rope->real_or("rope_theta", theta);
  }
  return theta;
}

ModelConfig read_llama(const ConfigReader& in, HuggingfaceForm form) {
  const FormDefaults& defaults = defaults_of(form);
  in.require("hidden_act", {"silu", "swish"}, "silu");
  ModelConfig config{.kind = ModelKind::llama};
  config.layers = in.count("num_hidden_layers");
  config.width = in.count("hidden_size");
  config.heads = in.count("num_attention_heads");
  config.kv_heads =
      in.count_or("num_key_value_heads", config.heads, defaults.kv_heads == 0 ? config.heads : defaults.kv_heads);
  config.hidden = in.count(form == HuggingfaceForm::qwen2_moe ? "moe_intermediate_size" : "intermediate_size");
  config.context = in.count("max_position_embeddings");
  config.norm_epsilon = in.real_or("rms_norm_eps", defaults.norm_epsilon);
  config.tie_embeddings = in.flag_or("tie_word_embeddings", false);
  config.dropout = in.real_or("attention_dropout", 0);
  config.rope_theta = read_rope_theta(in, defaults.rope_theta);
  if (config.width % config.heads == 0 && in.count_or("head_dim", config.head_width()) != config.head_width()) {
    in.refuse("head_dim",
              fmt::format("is {}, but hidden_size {} over {} heads is {}", in.count("head_dim"), config.width,
                          config.heads, config.head_width()),
              "import a model whose head_dim is hidden_size / num_attention_heads");
  }
  return config;
}

MoeConfig read_experts(const ConfigReader& in, const char* experts, int64_t top_k) {
  return {.experts = in.count(experts),
          .top_k = in.count_or("num_experts_per_tok", top_k),
          .balance_loss = in.real_or("router_aux_loss_coef", 0.001)};
}

void read_mixtral(const ConfigReader& in, ModelConfig& config) {
  if (in.find("sliding_window") != nullptr) {
    in.refuse("sliding_window", "is not null: a token sees those before it in a window only, which no model here does",
              "import a model without it");
  }
  in.require("router_jitter_noise", 0, 0, "noise in the input of the router");
  config.moe = read_experts(in, "num_local_experts", 2);
}

void refuse_windows(const ConfigReader& in) {
  in.require("use_sliding_window", false, false);
  const Json* types = in.find("layer_types");
  if (types == nullptr) return;
  for (const Json& type : *types) {
    if (type != "full_attention") {
      in.refuse("layer_types", "holds another type than full_attention", "import a model whose layers are all of it");
    }
  }
}

void read_qwen2_moe(const ConfigReader& in, ModelConfig& config) {
  in.require("decoder_sparse_step", 1, 1, "some layers have no experts");
  if (const Json* layers = in.find("mlp_only_layers"); layers != nullptr && !layers->empty()) {
    in.refuse("mlp_only_layers", "names layers without experts, and here all layers have them or none",
              "import a model whose layers all have experts");
  }
  config.qkv_bias = in.flag_or("qkv_bias", true);
  config.moe = read_experts(in, "num_experts", 4);
  config.moe.normalize = in.flag_or("norm_topk_prob", false);
  config.moe.shared_hidden = in.count("shared_expert_intermediate_size");
  config.moe.shared_gate = true;
}

HuggingfaceForm read_form(const ConfigReader& in) {
  const std::string type = in.text_or("model_type", "");
  if (const auto form = huggingface_form(type)) return *form;
  constexpr const char* kAction = "import a model of one of these types";
  constexpr std::string_view kTypes = "the supported types are gpt2, llama, qwen2, mixtral and qwen2_moe";
  if (type == "qwen3" || type == "qwen3_moe") {
    in.refuse("model_type",
              fmt::format("is '{}', whose queries and keys pass through separate norms; {}", type, kTypes), kAction);
  }
  in.refuse("model_type", fmt::format("is '{}'; {}", type, kTypes), kAction);
}

ModelConfig read_model(const ConfigReader& in) {
  const HuggingfaceForm form = read_form(in);
  if (form == HuggingfaceForm::gpt2) return read_gpt2(in);
  ModelConfig config = read_llama(in, form);
  if (form == HuggingfaceForm::llama) {
    in.require("attention_bias", false, false);
    in.require("mlp_bias", false, false);
  }
  if (is_qwen(form)) refuse_windows(in);
  config.qkv_bias = form == HuggingfaceForm::qwen2;
  if (form == HuggingfaceForm::mixtral) read_mixtral(in, config);
  if (form == HuggingfaceForm::qwen2_moe) read_qwen2_moe(in, config);
  return config;
}

}  // namespace

std::string huggingface_config(const ModelConfig& config, const SpecialTokens& tokens, std::string_view dtype) {
  Json out;
  const HuggingfaceForm form = huggingface_form(config);
  out["architectures"] = {defaults_of(form).architecture};
  out["model_type"] = name(form);
  write_form(form, config, out);
  out["vocab_size"] = config.vocabulary;
  out["tie_word_embeddings"] = config.tie_embeddings;
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
  ModelConfig config = read_model(in);
  config.vocabulary = in.count("vocab_size");
  validate_config(config, file);
  return config;
}

SpecialTokens parse_special_tokens(std::string_view json, std::string_view file) {
  const Json parsed = parse_config_object(json, file);
  const ConfigReader in(parsed, "", file);
  const FormDefaults& defaults = defaults_of(read_form(in));
  return {.begin = in.token_or("bos_token_id", defaults.begin),
          .end = in.tokens_or("eos_token_id", defaults.end),
          .pad = in.token_or("pad_token_id", std::nullopt)};
}

}  // namespace caravan

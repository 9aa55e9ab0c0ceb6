#include "caravan/formats/huggingface/architectures/columns.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace caravan::columns {
namespace {

using Json = nlohmann::ordered_json;

const char* name_in(const ConfigReader& in, const char* key, const char* other) {
  return other != nullptr && in.find(key) == nullptr && in.find(other) != nullptr ? other : key;
}

Json null_for_zero(auto value) { return value == 0 ? Json() : Json(value); }

}  // namespace

ConfigColumn layers(const char* key, const char* other) {
  constexpr int64_t kMost = 1 << 16;  // before columns make lists of this size
  return {[=](const ConfigReader& in, ModelConfig& config) {
            config.layers = in.count(name_in(in, key, other));
            if (config.layers > kMost) in.refuse(key, fmt::format("is above {}", kMost), "correct the file");
          },
          [=](const ModelConfig& config, Json& out) { out[key] = config.layers; }};
}

ConfigColumn count(const char* key, Field<int64_t> field, const char* other) {
  return {[=](const ConfigReader& in, ModelConfig& config) { field(config) = in.count(name_in(in, key, other)); },
          [=](const ModelConfig& config, Json& out) { out[key] = value_of(field, config); }};
}

ConfigColumn count_or(const char* key, Field<int64_t> field, int64_t absent) {
  return {[=](const ConfigReader& in, ModelConfig& config) { field(config) = in.count_or(key, absent); },
          [=](const ModelConfig& config, Json& out) { out[key] = value_of(field, config); }};
}

ConfigColumn nullable_real(const char* key, Field<double> field, double absent) {
  return {
      [=](const ConfigReader& in, ModelConfig& config) { field(config) = in.real_or(key, in.has(key) ? 0 : absent); },
      [=](const ModelConfig& config, Json& out) { out[key] = null_for_zero(value_of(field, config)); }};
}

ConfigColumn mlp_width(const char* key) {
  return {[=](const ConfigReader& in, ModelConfig& config) { config.hidden = in.count(key); },
          [=](const ModelConfig& config, Json& out) { out[key] = config.hidden_width(); }};
}

ConfigColumn hidden(const char* key) {
  return {[=](const ConfigReader& in, ModelConfig& config) { config.hidden = in.count_or(key, 0); },
          [=](const ModelConfig& config, Json& out) { out[key] = config.hidden_width(); }};
}

ConfigColumn kv_heads(const char* key, int64_t absent) {
  return {[=](const ConfigReader& in, ModelConfig& config) {
            config.kv_heads = in.count_or(key, config.heads, absent == 0 ? config.heads : absent);
          },
          [=](const ModelConfig& config, Json& out) { out[key] = config.num_kv_heads(); }};
}

ConfigColumn head_width(int64_t absent, const char* key) {
  return {[=](const ConfigReader& in, ModelConfig& config) {
            config.own_head_width = in.count_or(key, 0, absent);
            const bool is_usual =
                config.width % config.heads == 0 && config.own_head_width == config.width / config.heads;
            if (is_usual) config.own_head_width = 0;
          },
          [=](const ModelConfig& config, Json& out) { out[key] = config.head_width(); }};
}

ConfigColumn real(const char* key, Field<double> field, double absent) {
  return {[=](const ConfigReader& in, ModelConfig& config) { field(config) = in.real_or(key, absent); },
          [=](const ModelConfig& config, Json& out) { out[key] = value_of(field, config); }};
}

ConfigColumn score_width(const char* key, double absent) {
  return {[=](const ConfigReader& in, ModelConfig& config) { config.score_width = in.real_or(key, absent); },
          [=](const ModelConfig& config, Json& out) {
            const double width =
                config.score_width == 0 ? static_cast<double>(config.head_width()) : config.score_width;
            // transformers 5 refuses 20.0.
            out[key] = width == std::floor(width) ? Json(static_cast<int64_t>(width)) : Json(width);
          }};
}

ConfigColumn flag(const char* key, std::vector<Field<bool>> fields, bool absent) {
  return {[=](const ConfigReader& in, ModelConfig& config) {
            for (const Field<bool> field : fields) field(config) = in.flag_or(key, absent);
          },
          [=](const ModelConfig& config, Json& out) { out[key] = value_of(fields.front(), config); }};
}

ConfigColumn attention_bias(bool absent) {
  return flag("attention_bias", {CARAVAN_FIELD(arch.qkv_bias), CARAVAN_FIELD(arch.output_bias)}, absent);
}

ConfigColumn tied(bool absent) { return flag("tie_word_embeddings", {CARAVAN_FIELD(tie_embeddings)}, absent); }

ConfigColumn dropout(std::vector<const char*> keys, double absent) {
  return {[=](const ConfigReader& in, ModelConfig& config) {
            config.dropout = in.real_or(keys.front(), absent);
            for (const char* key : keys) {
              const double other = in.real_or(key, absent);
              if (other == config.dropout) continue;
              in.refuse(key,
                        fmt::format("is {}, but {} is {}: Caravan has one dropout rate for the model", other,
                                    keys.front(), config.dropout),
                        "set all of them to the same value");
            }
          },
          [=](const ModelConfig& config, Json& out) {
            for (const char* key : keys) out[key] = config.dropout;
          }};
}

ConfigColumn always(const char* key, bool value) {
  return {[=](const ConfigReader& in, ModelConfig&) { in.require(key, value, value); },
          [=](const ModelConfig&, Json& out) { out[key] = value; }};
}

ConfigColumn always(const char* key, double value, const char* meaning) {
  return {[=](const ConfigReader& in, ModelConfig&) { in.require(key, value, value, meaning); },
          [](const ModelConfig&, Json&) {}};
}

ConfigColumn words(const char* key, const char* value) {
  return {[=](const ConfigReader& in, ModelConfig&) {
            in.require(key, std::initializer_list<std::string_view>{value}, value);
          },
          [](const ModelConfig&, Json&) {}};
}

ConfigColumn activation(const char* key, const char* absent) {
  /// Of equal ones the first is written, or `absent`, if that is one of them: other programs refuse a Gemma whose
  /// activation has another name than its own.
  static const std::vector<std::pair<const char*, Activation>> kNames{
      {"gelu_new", Activation::gelu_tanh},  {"gelu_pytorch_tanh", Activation::gelu_tanh},
      {"gelu_fast", Activation::gelu_tanh}, {"gelu", Activation::gelu},
      {"gelu_python", Activation::gelu},    {"relu", Activation::relu},
      {"silu", Activation::silu},           {"swish", Activation::silu}};
  return {
      [=](const ConfigReader& in, ModelConfig& config) {
        const std::string name = in.text_or(key, absent);
        const auto found = std::ranges::find(kNames, name, [](const auto& one) { return std::string_view(one.first); });
        if (found == kNames.end()) {
          in.refuse(key, fmt::format("is '{}', which is not supported", name),
                    "import a model whose activation is gelu, gelu_new, relu or silu");
        }
        config.arch.activation = found->second;
      },
      [=](const ModelConfig& config, Json& out) {
        const auto is_ours = [&](const auto& one) { return one.second == config.arch.activation; };
        const auto is_usual = [&](const auto& one) { return is_ours(one) && std::string_view(one.first) == absent; };
        const auto usual = std::ranges::find_if(kNames, is_usual);
        out[key] = (usual != kNames.end() ? usual : std::ranges::find_if(kNames, is_ours))->first;
      }};
}

ConfigColumn experts(ExpertKeys keys) {
  const char* width = keys.hidden;
  return {[=](const ConfigReader& in, ModelConfig& config) {
            MoeConfig& moe = config.moe;
            // transformers 5 writes some files with the name that others have.
            const bool has_own = in.find(keys.experts) != nullptr || in.find("num_local_experts") == nullptr;
            moe.experts = in.count(has_own ? keys.experts : "num_local_experts");
            moe.top_k = in.count_or("num_experts_per_tok", keys.top_k);
            moe.balance_loss = in.real_or("router_aux_loss_coef", 0.001);
            config.hidden = in.count(width);
            in.require("router_jitter_noise", 0, 0, "noise in the input of the router");
            if (!keys.has_dense_layers) return;
            const int64_t step = in.count_or("decoder_sparse_step", 1);
            std::vector<bool> is_dense = in.listed_or("mlp_only_layers", config.layers, {});
            for (int64_t layer = 0; layer < config.layers; ++layer) {
              if ((layer + 1) % step != 0) is_dense[static_cast<size_t>(layer)] = true;
            }
            moe.dense_layers = LayerSet::of(is_dense);
            moe.dense_hidden = moe.dense_layers.empty() ? 0 : in.count("intermediate_size");
          },
          [=](const ModelConfig& config, Json& out) {
            const MoeConfig& moe = config.moe;
            out[keys.experts] = moe.experts;
            out["num_experts_per_tok"] = moe.top_k;
            out["router_aux_loss_coef"] = moe.balance_loss;
            out["output_router_logits"] = false;
            out[width] = config.hidden_width();
            if (!keys.has_dense_layers) return;
            out["intermediate_size"] = moe.dense_layers.empty() ? config.hidden_width() : config.dense_width();
            out["decoder_sparse_step"] = 1;
            Json dense = Json::array();
            for (int64_t layer = 0; layer < config.layers; ++layer) {
              if (moe.dense_layers.has(layer)) dense.push_back(layer);
            }
            out["mlp_only_layers"] = dense;
          }};
}

void set(Json& out, const char* key, int64_t value) { out[key] = value; }
void set(Json& out, const char* key, bool value) { out[key] = value; }

void write_flags(Json& out, const char* key, const LayerSet& layers, int64_t count, int is_member) {
  Json flags = Json::array();
  for (const bool is : layers.members(count)) flags.push_back(is ? is_member : 1 - is_member);
  out[key] = flags;
}

WeightColumn norm_weight(const std::string& theirs, const std::string& ours, double offset) {
  return {.theirs = theirs + ".weight", .ours = {ours + ".weight"}, .offset = offset};
}

std::vector<WeightColumn> columns_of(const std::string& theirs, const std::string& ours) {
  return {{.theirs = theirs, .ours = {ours}}};
}

std::vector<WeightColumn> with_bias(const std::string& theirs, std::vector<std::string> ours, WeightColumn::Form form) {
  WeightColumn weight{.theirs = theirs + ".weight", .ours = ours, .form = form};
  WeightColumn bias{.theirs = theirs + ".bias", .ours = std::move(ours)};
  if (form == WeightColumn::Form::by_head) bias.form = form;
  for (std::string& name : weight.ours) name += ".weight";
  for (std::string& name : bias.ours) name += ".bias";
  return {weight, bias};
}

std::vector<WeightColumn> llama_attention() {
  return joined({with_bias("self_attn.q_proj", {"attention.query"}), with_bias("self_attn.k_proj", {"attention.key"}),
                 with_bias("self_attn.v_proj", {"attention.value"}),
                 with_bias("self_attn.o_proj", {"attention.output"})});
}

std::vector<WeightColumn> llama_mlp() {
  return joined({with_bias("mlp.gate_proj", {"mlp.gate"}), with_bias("mlp.up_proj", {"mlp.up"}),
                 with_bias("mlp.down_proj", {"mlp.down"})});
}

std::vector<WeightColumn> llama_experts() {
  return {{"mlp.gate.weight", {"mlp.router.weight"}},
          {"mlp.experts.*.gate_proj.weight", {"mlp.experts.gate"}},
          {"mlp.experts.*.up_proj.weight", {"mlp.experts.up"}},
          {"mlp.experts.*.down_proj.weight", {"mlp.experts.down"}},
          {"mlp.shared_expert.gate_proj.weight", {"mlp.shared.gate.weight"}},
          {"mlp.shared_expert.up_proj.weight", {"mlp.shared.up.weight"}},
          {"mlp.shared_expert.down_proj.weight", {"mlp.shared.down.weight"}},
          {"mlp.shared_expert_gate.weight", {"mlp.shared_gate.weight"}}};
}

WeightTable llama_weights(std::vector<WeightColumn> layer, double norm_offset) {
  return {.prefix = "model.",
          .layers = "layers",
          .first = {{"embed_tokens.weight", {"embedding.token.weight"}}},
          .layer = std::move(layer),
          .last = {norm_weight("norm", "head.norm", norm_offset), {"/lm_head.weight", {"head.weight"}}},
          .classes = {norm_weight("norm", "head.norm", norm_offset), {"/score.weight", {"head.weight"}}}};
}

}  // namespace caravan::columns

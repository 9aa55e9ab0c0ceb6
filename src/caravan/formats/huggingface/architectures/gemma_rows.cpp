#include "caravan/formats/huggingface/architectures/columns.h"
#include "caravan/formats/huggingface/architectures/rows.h"

namespace caravan {

using namespace columns;  // NOLINT: the vocabulary of this file

namespace {

Architecture gemma(NormPlace place) {
  Architecture arch = Architecture::llama();
  arch.norm_place = place;
  arch.scales_embedding = true;
  arch.activation = Activation::gelu_tanh;
  return arch;
}

/// transformers takes the activation under `key`. Heads have a width of 256 unless the file says another.
std::vector<ConfigColumn> gemma_columns(const char* key, int64_t kv_heads_absent) {
  std::vector<ConfigColumn> columns = llama_columns(kv_heads_absent, 1e-6, true);
  columns.front() = activation(key, "gelu_pytorch_tanh");
  columns.push_back(head_width(256));
  columns.push_back(attention_bias(false));
  return columns;
}

/// They take "gelu" of the first Gemma for its tanh form, which it was trained with.
ConfigColumn tanh_activation(const char* key) {
  ConfigColumn column = activation(key, "gelu_pytorch_tanh");
  const auto read = column.read;
  column.read = [=](const ConfigReader& in, ModelConfig& config) {
    read(in, config);
    if (config.arch.activation == Activation::gelu) config.arch.activation = Activation::gelu_tanh;
  };
  return column;
}

/// Of Gemma 2 and 3.
std::vector<ConfigColumn> scores_and_cap(double cap) {
  return {score_width("query_pre_attn_scalar", 256),
          nullable_real("final_logit_softcapping", CARAVAN_FIELD(logits_cap), cap),
          always("use_bidirectional_attention", false)};
}

/// Their norms multiply by 1 + weight.
WeightColumn offset_norm(const std::string& theirs, const std::string& ours) { return norm_weight(theirs, ours, 1); }

WeightTable gemma2_weights(std::vector<WeightColumn> qk_norms) {
  return llama_weights(joined({{offset_norm("input_layernorm", "attention_norm")},
                               llama_attention(),
                               std::move(qk_norms),
                               {offset_norm("post_attention_layernorm", "attention_post_norm"),
                                offset_norm("pre_feedforward_layernorm", "mlp_norm")},
                               llama_mlp(),
                               {offset_norm("post_feedforward_layernorm", "mlp_post_norm")}}),
                       1);
}

}  // namespace

ArchitectureRow gemma_row() {
  std::vector<ConfigColumn> columns = gemma_columns("hidden_act", 16);
  columns.front() = tanh_activation("hidden_act");
  std::vector<WeightColumn> layer = joined({{offset_norm("input_layernorm", "attention_norm")},
                                            llama_attention(),
                                            {offset_norm("post_attention_layernorm", "mlp_norm")},
                                            llama_mlp()});
  return {.name = "gemma",
          .their_class = "GemmaForCausalLM",
          .base = {.arch = gemma(NormPlace::before)},
          .columns = joined({std::move(columns), {rope({}), always("use_bidirectional_attention", false)}}),
          .weights = llama_weights(std::move(layer), 1),
          .begin = 2,
          .end = 1};
}

ArchitectureRow gemma2_row() {
  return {.name = "gemma2",
          .their_class = "Gemma2ForCausalLM",
          .base = {.arch = gemma(NormPlace::both),
                   .window = 4096,
                   .full_layers = LayerSet::every(2),
                   .attention_cap = 50,
                   .logits_cap = 30},
          .columns = joined({gemma_columns("hidden_activation", 4),
                             {rope({}), window(WindowRule::types, 4096),
                              nullable_real("attn_logit_softcapping", CARAVAN_FIELD(attention_cap), 50)},
                             scores_and_cap(30)}),
          .weights = gemma2_weights({}),
          .begin = 2,
          .end = 1};
}

/// Layers with a window rotate by another base; queries and keys have norms. A file may have a cap of scores, which
/// transformers does not use.
ArchitectureRow gemma3_row() {
  Architecture arch = gemma(NormPlace::both);
  arch.qk_norm = QkNorm::head;
  const ConfigColumn pattern{[](const ConfigReader& in, ModelConfig& config) {
                               config.full_layers = LayerSet::every(in.count_or("sliding_window_pattern", 6));
                             },
                             [](const ModelConfig&, nlohmann::ordered_json&) {}};  // layer_types says it
  return {.name = "gemma3_text",
          .their_class = "Gemma3ForCausalLM",
          .base = {.arch = arch,
                   .rope_theta = 1e6,
                   .local_rope_theta = 1e4,
                   .window = 4096,
                   .full_layers = LayerSet::every(6)},
          .columns = joined({gemma_columns("hidden_activation", 4),
                             {pattern, window(WindowRule::types, 4096),
                              rope({.theta = 1e6, .local_key = "rope_local_base_freq", .local_theta = 1e4})},
                             scores_and_cap(0)}),
          .weights = gemma2_weights({offset_norm("self_attn.q_norm", "attention.query_norm"),
                                     offset_norm("self_attn.k_norm", "attention.key_norm")}),
          .begin = 2,
          .end = 1};
}

}  // namespace caravan

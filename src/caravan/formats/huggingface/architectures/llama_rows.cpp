#include "caravan/formats/huggingface/architectures/columns.h"
#include "caravan/formats/huggingface/architectures/rows.h"

namespace caravan {

using namespace columns;  // NOLINT: the vocabulary of this file

namespace columns {

std::vector<ConfigColumn> llama_columns(int64_t kv_heads_absent, double epsilon, bool is_tied) {
  return {activation("hidden_act", "silu"),
          layers("num_hidden_layers"),
          count("hidden_size", CARAVAN_FIELD(width)),
          count("num_attention_heads", CARAVAN_FIELD(heads)),
          kv_heads("num_key_value_heads", kv_heads_absent),
          head_width(0),
          mlp_width("intermediate_size"),
          count("max_position_embeddings", CARAVAN_FIELD(context)),
          real("rms_norm_eps", CARAVAN_FIELD(norm_epsilon), epsilon),
          tied(is_tied),
          dropout({"attention_dropout"}, 0)};
}

std::vector<WeightColumn> llama_layer(std::vector<WeightColumn> mlp) {
  return joined({{norm_weight("input_layernorm", "attention_norm")},
                 llama_attention(),
                 {norm_weight("post_attention_layernorm", "mlp_norm")},
                 std::move(mlp)});
}

}  // namespace columns

ArchitectureRow llama_row() {
  return {
      .name = "llama",
      .their_class = "LlamaForCausalLM",
      .base = {.arch = Architecture::llama()},
      .columns = joined({llama_columns(0, 1e-6, false),
                         {rope({}), attention_bias(false), flag("mlp_bias", {CARAVAN_FIELD(arch.mlp_bias)}, false)}}),
      .weights = llama_weights(llama_layer(llama_mlp())),
      .begin = 1,
      .end = 2};
}

ArchitectureRow mistral_row() {
  return {.name = "mistral",
          .their_class = "MistralForCausalLM",
          .base = {.arch = Architecture::llama(), .window = 4096},
          .columns = joined({llama_columns(8, 1e-6, false), {rope({}), window(WindowRule::types_or_all, 4096)}}),
          .weights = llama_weights(llama_layer(llama_mlp())),
          .begin = 1,
          .end = 2};
}

ArchitectureRow mixtral_row() {
  return {.name = "mixtral",
          .their_class = "MixtralForCausalLM",
          .base = {.arch = Architecture::llama(), .rope_theta = 1e6, .moe = {.experts = 8}},
          .columns = joined({llama_columns(8, 1e-5, false),
                             {rope({.theta = 1e6}), window(WindowRule::all, 0),
                              experts({.experts = "num_local_experts", .top_k = 2})}}),
          .weights = llama_weights(llama_layer({{"block_sparse_moe.gate.weight", {"mlp.router.weight"}},
                                                {"block_sparse_moe.experts.*.w1.weight", {"mlp.experts.gate"}},
                                                {"block_sparse_moe.experts.*.w3.weight", {"mlp.experts.up"}},
                                                {"block_sparse_moe.experts.*.w2.weight", {"mlp.experts.down"}}})),
          .begin = 1,
          .end = 2};
}

/// Queries, keys and values, and gate and up, are one matrix each.
ArchitectureRow phi3_row() {
  Architecture arch = Architecture::llama();
  arch.drops_branches = true;
  return {.name = "phi3",
          .their_class = "Phi3ForCausalLM",
          .base = {.arch = arch},
          .columns = joined({llama_columns(0, 1e-5, false),
                             {dropout({"attention_dropout", "resid_pdrop", "embd_pdrop"}, 0),
                              rope({.fraction_key = "partial_rotary_factor",
                                    .original_key = "original_max_position_embeddings",
                                    .original = 4096}),
                              window(WindowRule::all, 0)}}),
          .weights = llama_weights({norm_weight("input_layernorm", "attention_norm"),
                                    {"self_attn.qkv_proj.weight",
                                     {"attention.query.weight", "attention.key.weight", "attention.value.weight"}},
                                    {"self_attn.o_proj.weight", {"attention.output.weight"}},
                                    norm_weight("post_attention_layernorm", "mlp_norm"),
                                    {"mlp.gate_up_proj.weight", {"mlp.gate.weight", "mlp.up.weight"}},
                                    {"mlp.down_proj.weight", {"mlp.down.weight"}}}),
          .begin = 1,
          .end = 32000};
}

/// Every fourth layer does not rotate.
ArchitectureRow smollm3_row() {
  const ConfigColumn unrotated{
      [](const ConfigReader& in, ModelConfig& config) {
        const int64_t interval = in.count_or("no_rope_layer_interval", 4);
        config.unrotated_layers = in.flags_or("no_rope_layers", config.layers, /*is_member=*/0,
                                              LayerSet::every(interval).members(config.layers));
      },
      [](const ModelConfig& config, nlohmann::ordered_json& out) {
        write_flags(out, "no_rope_layers", config.unrotated_layers, config.layers, /*is_member=*/0);
      }};
  return {.name = "smollm3",
          .their_class = "SmolLM3ForCausalLM",
          .base = {.arch = Architecture::llama(), .rope_theta = 2e6, .unrotated_layers = LayerSet::every(4)},
          .columns = joined({llama_columns(4, 1e-6, true),
                             {rope({.theta = 2e6}), unrotated, window(WindowRule::types_unrotated, 0),
                              attention_bias(false), flag("mlp_bias", {CARAVAN_FIELD(arch.mlp_bias)}, false)}}),
          .weights = llama_weights(llama_layer(llama_mlp())),
          .begin = 128000,
          .end = 128001};
}

/// Norms behind the branches, and of queries and keys.
ArchitectureRow olmo2_row() {
  Architecture arch = Architecture::llama();
  arch.norm_place = NormPlace::after;
  arch.qk_norm = QkNorm::whole;
  return {.name = "olmo2",
          .their_class = "Olmo2ForCausalLM",
          .base = {.arch = arch},
          .columns = joined({llama_columns(0, 1e-5, false), {rope({}), attention_bias(false)}}),
          .weights = llama_weights(joined({llama_attention(),
                                           {norm_weight("self_attn.q_norm", "attention.query_norm"),
                                            norm_weight("self_attn.k_norm", "attention.key_norm"),
                                            norm_weight("post_attention_layernorm", "attention_post_norm")},
                                           llama_mlp(),
                                           {norm_weight("post_feedforward_layernorm", "mlp_post_norm")}})),
          .end = 50279};
}

}  // namespace caravan

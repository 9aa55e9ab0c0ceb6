#include "caravan/formats/huggingface/architectures/columns.h"
#include "caravan/formats/huggingface/architectures/rows.h"

namespace caravan {

using namespace columns;  // NOLINT: the vocabulary of this file

namespace {

Architecture qwen2() {
  Architecture arch = Architecture::llama();
  arch.qkv_bias = true;
  return arch;
}

Architecture qwen3() {
  Architecture arch = Architecture::llama();
  arch.qk_norm = QkNorm::head;
  return arch;
}

std::vector<WeightColumn> qwen3_layer(std::vector<WeightColumn> mlp) {
  return joined(
      {{norm_weight("input_layernorm", "attention_norm")},
       llama_attention(),
       {norm_weight("self_attn.q_norm", "attention.query_norm"), norm_weight("self_attn.k_norm", "attention.key_norm"),
        norm_weight("post_attention_layernorm", "mlp_norm")},
       std::move(mlp)});
}

}  // namespace

ArchitectureRow qwen2_row() {
  return {.name = "qwen2",
          .their_class = "Qwen2ForCausalLM",
          .base = {.arch = qwen2()},
          .columns = joined({llama_columns(32, 1e-6, false), {rope({}), window(WindowRule::types_if_used, 4096)}}),
          .weights = llama_weights(llama_layer(llama_mlp()))};
}

ArchitectureRow qwen2_moe_row() {
  const ConfigColumn shared{[](const ConfigReader& in, ModelConfig& config) {
                              config.moe.shared_hidden = in.count("shared_expert_intermediate_size");
                            },
                            [](const ModelConfig& config, nlohmann::ordered_json& out) {
                              set(out, "shared_expert_intermediate_size", config.moe.shared_hidden);
                            }};
  return {
      .name = "qwen2_moe",
      .their_class = "Qwen2MoeForCausalLM",
      .base = {.arch = qwen2(),
               .moe = {.experts = 60, .top_k = 4, .normalize = false, .shared_hidden = 5632, .shared_gate = true}},
      .columns = joined(
          {llama_columns(16, 1e-6, false),
           {rope({}), window(WindowRule::types_early, 4096),
            experts(
                {.experts = "num_experts", .hidden = "moe_intermediate_size", .top_k = 4, .has_dense_layers = true}),
            shared, flag("norm_topk_prob", {CARAVAN_FIELD(moe.normalize)}, false),
            flag("qkv_bias", {CARAVAN_FIELD(arch.qkv_bias)}, true)}}),
      .weights = llama_weights(llama_layer(joined({llama_mlp(), llama_experts()})))};
}

ArchitectureRow qwen3_row() {
  return {
      .name = "qwen3",
      .their_class = "Qwen3ForCausalLM",
      .base = {.arch = qwen3()},
      .columns = joined({llama_columns(32, 1e-6, false),
                         {head_width(128), rope({}), window(WindowRule::types_if_used, 4096), attention_bias(false)}}),
      .weights = llama_weights(qwen3_layer(llama_mlp()))};
}

ArchitectureRow qwen3_moe_row() {
  return {
      .name = "qwen3_moe",
      .their_class = "Qwen3MoeForCausalLM",
      .base = {.arch = qwen3(), .moe = {.experts = 128, .top_k = 8, .normalize = false}},
      .columns = joined(
          {llama_columns(4, 1e-6, false),
           {rope({}), window(WindowRule::if_used, 4096),
            experts(
                {.experts = "num_experts", .hidden = "moe_intermediate_size", .top_k = 8, .has_dense_layers = true}),
            flag("norm_topk_prob", {CARAVAN_FIELD(moe.normalize)}, false), attention_bias(false)}}),
      .weights = llama_weights(qwen3_layer(joined({llama_mlp(), llama_experts()})))};
}

}  // namespace caravan

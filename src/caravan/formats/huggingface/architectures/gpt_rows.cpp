#include "caravan/formats/huggingface/architectures/columns.h"
#include "caravan/formats/huggingface/architectures/rows.h"

namespace caravan {

using namespace columns;  // NOLINT: the vocabulary of this file

namespace {

using Form = WeightColumn::Form;

std::vector<WeightColumn> biased_norm(const std::string& theirs, const std::string& ours) {
  return with_bias(theirs, {ours});
}

/// The last norm, and the matrix behind it: of logits, or of classes.
std::vector<WeightColumn> head(const std::string& norm, const std::string& matrix) {
  return joined({biased_norm(norm, "head.norm"), columns_of(matrix, "head.weight")});
}

/// A function: rows may be made before the constants of this file.
std::vector<std::string> qkv() { return {"attention.query", "attention.key", "attention.value"}; }

/// The layer of GPT-NeoX, BLOOM and Falcon.
std::vector<WeightColumn> fused_layer(const std::string& attention) {
  return joined({biased_norm("input_layernorm", "attention_norm"),
                 with_bias(attention + ".query_key_value", qkv(), Form::by_head),
                 with_bias(attention + ".dense", {"attention.output"}),
                 biased_norm("post_attention_layernorm", "mlp_norm"), with_bias("mlp.dense_h_to_4h", {"mlp.up"}),
                 with_bias("mlp.dense_4h_to_h", {"mlp.down"})});
}

}  // namespace

ArchitectureRow gpt2_row() {
  return {
      .name = "gpt2",
      .their_class = "GPT2LMHeadModel",
      .base = {},
      .columns = {activation("activation_function", "gelu_new"),
                  layers("n_layer"),
                  count("n_embd", CARAVAN_FIELD(width)),
                  count("n_head", CARAVAN_FIELD(heads)),
                  hidden("n_inner"),
                  count("n_positions", CARAVAN_FIELD(context)),
                  {[](const ConfigReader&, ModelConfig&) {},
                   [](const ModelConfig& config, nlohmann::ordered_json& out) {
                     set(out, "n_ctx", config.context);  // read by old versions
                   }},
                  real("layer_norm_epsilon", CARAVAN_FIELD(norm_epsilon), 1e-5),
                  tied(true),
                  dropout({"attn_pdrop", "embd_pdrop", "resid_pdrop"}, 0.1),
                  always("scale_attn_weights", true),
                  always("scale_attn_by_inverse_layer_idx", false),
                  always("add_cross_attention", false)},
      .weights = {.prefix = "transformer.",
                  .layers = "h",
                  .first = {{"wte.weight", {"embedding.token.weight"}}, {"wpe.weight", {"embedding.position.weight"}}},
                  .layer =
                      joined({biased_norm("ln_1", "attention_norm"), with_bias("attn.c_attn", qkv(), Form::transposed),
                              with_bias("attn.c_proj", {"attention.output"}, Form::transposed),
                              biased_norm("ln_2", "mlp_norm"), with_bias("mlp.c_fc", {"mlp.up"}, Form::transposed),
                              with_bias("mlp.c_proj", {"mlp.down"}, Form::transposed)}),
                  .last = head("ln_f", "/lm_head.weight"),
                  .classes = head("ln_f", "/score.weight")},
      .begin = 50256,
      .end = 50256};
}

/// GPT-NeoX, Pythia: both branches of a layer read the same stream, and a part of each head is rotated.
ArchitectureRow gpt_neox_row() {
  Architecture arch = Architecture::gpt2();
  arch.positions = Positions::rotary;
  arch.is_parallel = true;
  arch.activation = Activation::gelu;
  return {.name = "gpt_neox",
          .their_class = "GPTNeoXForCausalLM",
          .base = {.arch = arch, .rope_fraction = 0.25},
          .columns = {activation("hidden_act", "gelu"), layers("num_hidden_layers"),
                      count("hidden_size", CARAVAN_FIELD(width)), count("num_attention_heads", CARAVAN_FIELD(heads)),
                      mlp_width("intermediate_size"), count("max_position_embeddings", CARAVAN_FIELD(context)),
                      real("layer_norm_eps", CARAVAN_FIELD(norm_epsilon), 1e-5), tied(false),
                      dropout({"attention_dropout", "hidden_dropout"}, 0),
                      rope({.fraction = 0.25, .theta_key = "rotary_emb_base", .fraction_key = "rotary_pct"}),
                      flag("use_parallel_residual", {CARAVAN_FIELD(arch.is_parallel)}, true), attention_bias(true)},
          .weights = {.prefix = "gpt_neox.",
                      .layers = "layers",
                      .first = {{"embed_in.weight", {"embedding.token.weight"}}},
                      .layer = fused_layer("attention"),
                      .last = head("final_layer_norm", "/embed_out.weight"),
                      .classes = head("final_layer_norm", "/score.weight")},
          .begin = 0,
          .end = 2};
}

/// OPT does not use the first two of its learned positions.
ArchitectureRow opt_row() {
  Architecture arch = Architecture::gpt2();
  arch.activation = Activation::relu;
  const ConfigColumn projection{
      [](const ConfigReader& in, ModelConfig& config) {
        if (in.count_or("word_embed_proj_dim", config.width) == config.width) return;
        in.refuse("word_embed_proj_dim", "differs from hidden_size: a projected embedding",
                  "import a model whose word_embed_proj_dim is hidden_size");
      },
      [](const ModelConfig& config, nlohmann::ordered_json& out) { set(out, "word_embed_proj_dim", config.width); }};
  return {
      .name = "opt",
      .their_class = "OPTForCausalLM",
      .base = {.arch = arch},
      .columns = {activation("activation_function", "relu"), layers("num_hidden_layers"),
                  count("hidden_size", CARAVAN_FIELD(width)), count("num_attention_heads", CARAVAN_FIELD(heads)),
                  mlp_width("ffn_dim"), count("max_position_embeddings", CARAVAN_FIELD(context)), tied(true),
                  dropout({"dropout"}, 0.1), always("layerdrop", 0.0, "layers that are left out at random"),
                  always("do_layer_norm_before", true), always("_remove_final_layer_norm", false),
                  always("layer_norm_elementwise_affine", true),
                  flag("enable_bias",
                       {CARAVAN_FIELD(arch.qkv_bias), CARAVAN_FIELD(arch.output_bias), CARAVAN_FIELD(arch.mlp_bias)},
                       true),
                  projection},
      .weights = {.prefix = "model.",
                  .layers = "decoder.layers",
                  .first = {{"decoder.embed_tokens.weight", {"embedding.token.weight"}},
                            {.theirs = "decoder.embed_positions.weight",
                             .ours = {"embedding.position.weight"},
                             .unused_rows = 2}},
                  .layer = joined({biased_norm("self_attn_layer_norm", "attention_norm"),
                                   with_bias("self_attn.q_proj", {"attention.query"}),
                                   with_bias("self_attn.k_proj", {"attention.key"}),
                                   with_bias("self_attn.v_proj", {"attention.value"}),
                                   with_bias("self_attn.out_proj", {"attention.output"}),
                                   biased_norm("final_layer_norm", "mlp_norm"), with_bias("fc1", {"mlp.up"}),
                                   with_bias("fc2", {"mlp.down"})}),
                  .last = head("decoder.final_layer_norm", "/lm_head.weight"),
                  .classes = head("decoder.final_layer_norm", "/score.weight")},
      .begin = 2,
      .end = 2};
}

ArchitectureRow bloom_row() {
  Architecture arch = Architecture::gpt2();
  arch.positions = Positions::alibi;
  arch.embedding_norm = true;
  const ConfigColumn mlp{[](const ConfigReader&, ModelConfig& config) { config.hidden = 4 * config.width; },
                         [](const ModelConfig&, nlohmann::ordered_json&) {}};
  const ConfigColumn exact{[](const ConfigReader& in, ModelConfig&) {
                             if (in.count_or("pretraining_tp", 1) > 1) in.require("slow_but_exact", false, false);
                           },
                           [](const ModelConfig&, nlohmann::ordered_json&) {}};
  return {.name = "bloom",
          .their_class = "BloomForCausalLM",
          .base = {.arch = arch},
          .columns = {layers("n_layer", "num_hidden_layers"), count("hidden_size", CARAVAN_FIELD(width), "n_embed"),
                      count("n_head", CARAVAN_FIELD(heads), "num_attention_heads"), mlp,
                      count_or("seq_length", CARAVAN_FIELD(context), 2048),
                      real("layer_norm_epsilon", CARAVAN_FIELD(norm_epsilon), 1e-5), tied(true),
                      dropout({"attention_dropout", "hidden_dropout"}, 0),
                      always("apply_residual_connection_post_layernorm", false), exact},
          .weights = {.prefix = "transformer.",
                      .layers = "h",
                      .first = joined({columns_of("word_embeddings.weight", "embedding.token.weight"),
                                       biased_norm("word_embeddings_layernorm", "embedding.norm")}),
                      .layer = fused_layer("self_attention"),
                      .last = head("ln_f", "/lm_head.weight"),
                      .classes = head("ln_f", "/score.weight")},
          .begin = 1,
          .end = 2};
}

/// Both branches of a layer read the same norm; all queries share one head of keys.
ArchitectureRow falcon_row() {
  Architecture arch = Architecture::gpt2();
  arch.positions = Positions::rotary;
  arch.is_parallel = true;
  arch.has_one_norm = true;
  arch.activation = Activation::gelu;
  arch.qkv_bias = arch.output_bias = arch.mlp_bias = false;
  const ConfigColumn shared_keys{[](const ConfigReader& in, ModelConfig& config) {
                                   const bool is_shared = in.flag_or("multi_query", true);
                                   config.kv_heads = is_shared ? 1 : in.count_or("num_kv_heads", config.heads);
                                   if (is_shared || config.kv_heads == config.heads) return;
                                   in.refuse("num_kv_heads", "is between 1 and the number of heads",
                                             "import a model whose heads share one head of keys, or none");
                                 },
                                 [](const ModelConfig& config, nlohmann::ordered_json& out) {
                                   set(out, "multi_query", config.num_kv_heads() == 1);
                                 }};
  return {
      .name = "falcon",
      .their_class = "FalconForCausalLM",
      .base = {.arch = arch},
      .columns = {activation("activation", "gelu"), layers("num_hidden_layers", "n_layer"),
                  count("hidden_size", CARAVAN_FIELD(width), "n_embed"),
                  count("num_attention_heads", CARAVAN_FIELD(heads), "n_head"), shared_keys, hidden("ffn_hidden_size"),
                  count_or("max_position_embeddings", CARAVAN_FIELD(context), 2048),
                  real("layer_norm_epsilon", CARAVAN_FIELD(norm_epsilon), 1e-5), tied(true),
                  dropout({"attention_dropout", "hidden_dropout"}, 0), rope({}), always("alibi", false),
                  always("new_decoder_architecture", false),
                  flag("parallel_attn", {CARAVAN_FIELD(arch.is_parallel), CARAVAN_FIELD(arch.has_one_norm)}, true),
                  flag("bias",
                       {CARAVAN_FIELD(arch.qkv_bias), CARAVAN_FIELD(arch.output_bias), CARAVAN_FIELD(arch.mlp_bias)},
                       false)},
      .weights = {.prefix = "transformer.",
                  .layers = "h",
                  .first = {{"word_embeddings.weight", {"embedding.token.weight"}}},
                  .layer = fused_layer("self_attention"),
                  .last = head("ln_f", "/lm_head.weight"),
                  .classes = head("ln_f", "/score.weight")},
      .begin = 11,
      .end = 11};
}

}  // namespace caravan

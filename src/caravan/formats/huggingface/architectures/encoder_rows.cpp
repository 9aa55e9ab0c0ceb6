#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/formats/huggingface/architectures/columns.h"
#include "caravan/formats/huggingface/architectures/rows.h"

namespace caravan {

using namespace columns;  // NOLINT: the vocabulary of this file

namespace {

using Json = nlohmann::ordered_json;

/// feed_forward_proj: "relu", or "gated-gelu", whose GELU is that of gelu_new.
ConfigColumn t5_feed() {
  static constexpr const char* kKey = "feed_forward_proj";
  return {[](const ConfigReader& in, ModelConfig& config) {
            const std::string name = in.text_or(kKey, "relu");
            config.arch.is_gated = name.starts_with("gated-");
            const std::string activation = config.arch.is_gated ? name.substr(6) : name;
            if (activation == "gelu") {
              config.arch.activation = config.arch.is_gated ? Activation::gelu_tanh : Activation::gelu;
            } else if (activation == "relu" || activation == "silu" || activation == "gelu_new") {
              config.arch.activation = activation == "relu"   ? Activation::relu
                                       : activation == "silu" ? Activation::silu
                                                              : Activation::gelu_tanh;
            } else {
              in.refuse(kKey, fmt::format("is '{}', which is not supported", name),
                        "import a model with relu, gated-gelu or gated-silu");
            }
          },
          [](const ModelConfig& config, Json& out) {
            constexpr std::array kNames{"gelu_new", "gelu", "relu", "silu"};
            std::string name = kNames.at(static_cast<size_t>(config.arch.activation));
            if (config.arch.is_gated) name = "gated-" + (name == "gelu_new" ? "gelu" : name);
            out[kKey] = name;
          }};
}

/// num_layers of the encoder, num_decoder_layers.
ConfigColumn t5_layers() {
  return {[](const ConfigReader& in, ModelConfig& config) {
            constexpr int64_t kMost = 1 << 15;
            config.encoder_layers = in.count("num_layers");
            const int64_t others = in.count_or("num_decoder_layers", config.encoder_layers);
            if (std::max(config.encoder_layers, others) > kMost) {
              in.refuse("num_layers", fmt::format("is above {}", kMost), "correct the file");
            }
            config.layers = config.encoder_layers + others;
          },
          [](const ModelConfig& config, Json& out) {
            out["num_layers"] = config.encoder_layers;
            out["num_decoder_layers"] = config.layers - config.encoder_layers;
          }};
}

/// n_positions, which limits nothing in T5 itself: that of both texts, unless they differ.
ConfigColumn t5_context() {
  return {[](const ConfigReader& in, ModelConfig& config) {
            config.source_context = in.count_or("n_positions", 512);
            config.context = in.count_or("n_target_positions", config.source_context);
          },
          [](const ModelConfig& config, Json& out) {
            out["n_positions"] = config.source_context;
            if (config.context != config.source_context) out["n_target_positions"] = config.context;
          }};
}

/// Older files say by tie_word_embeddings whether the head is scaled, too.
ConfigColumn t5_tied() {
  return {[](const ConfigReader& in, ModelConfig& config) {
            config.tie_embeddings = in.flag_or("tie_word_embeddings", true);
            config.arch.scales_head = in.flag_or("scale_decoder_outputs", config.tie_embeddings);
          },
          [](const ModelConfig& config, Json& out) {
            out["tie_word_embeddings"] = config.tie_embeddings;
            out["scale_decoder_outputs"] = config.arch.scales_head;
          }};
}

/// Where they are not tied, transformers has two biases of the head, of which it uses the other one.
ConfigColumn bert_tied() {
  return {[](const ConfigReader& in, ModelConfig& config) {
            in.require("tie_word_embeddings", true, true);
            config.tie_embeddings = true;
          },
          [](const ModelConfig& config, Json& out) {
            out["tie_word_embeddings"] = config.tie_embeddings || config.classes > 0;
          }};
}

std::vector<WeightColumn> t5_attention(const std::string& theirs, const std::string& ours) {
  return joined({columns_of(theirs + ".q.weight", ours + ".query.weight"),
                 columns_of(theirs + ".k.weight", ours + ".key.weight"),
                 columns_of(theirs + ".v.weight", ours + ".value.weight"),
                 columns_of(theirs + ".o.weight", ours + ".output.weight")});
}

/// The first `layer.N` of a block, and its last, of which the decoder has another one between.
std::vector<WeightColumn> t5_layer(bool is_of_encoder) {
  std::vector<WeightColumn> layer =
      joined({std::vector<WeightColumn>{norm_weight("layer.0.layer_norm", "attention_norm")},
              columns_of("layer.0.SelfAttention.relative_attention_bias.weight", "attention.core.bias"),
              t5_attention("layer.0.SelfAttention", "attention")});
  if (!is_of_encoder) {
    layer.push_back(norm_weight("layer.1.layer_norm", "cross_norm"));
    for (const WeightColumn& column : t5_attention("layer.1.EncDecAttention", "cross_attention"))
      layer.push_back(column);
  }
  const std::string feed = is_of_encoder ? "layer.1." : "layer.2.";
  layer.push_back(norm_weight(feed + "layer_norm", "mlp_norm"));
  const std::string dense = feed + "DenseReluDense.";
  const auto is_gated = [](const ModelConfig& config) { return config.arch.is_gated; };
  const auto is_plain = [](const ModelConfig& config) { return !config.arch.is_gated; };
  layer.push_back({.theirs = dense + "wi.weight", .ours = {"mlp.up.weight"}, .applies = is_plain});
  layer.push_back({.theirs = dense + "wi_0.weight", .ours = {"mlp.gate.weight"}});
  layer.push_back({.theirs = dense + "wi_1.weight", .ours = {"mlp.up.weight"}, .applies = is_gated});
  layer.push_back({.theirs = dense + "wo.weight", .ours = {"mlp.down.weight"}});
  return layer;
}

}  // namespace

/// Post-norm layers that see the whole text, types of tokens, and a head that predicts masked tokens.
ArchitectureRow bert_row() {
  Architecture arch = Architecture::gpt2();
  arch.norm_place = NormPlace::sum;
  arch.embedding_norm = true;
  arch.activation = Activation::gelu;
  arch.is_causal = false;
  arch.head = HeadKind::masked;
  const ConfigColumn classifier_dropout{
      [](const ConfigReader& in, ModelConfig& config) {
        if (in.real_or("classifier_dropout", config.dropout) == config.dropout) return;
        in.refuse("classifier_dropout", "differs from hidden_dropout_prob: Caravan has one dropout rate for the model",
                  "set all of them to the same value");
      },
      [](const ModelConfig&, Json&) {}};
  return {.name = "bert",
          .their_class = "BertForMaskedLM",
          .base = {.arch = arch, .norm_epsilon = 1e-12, .token_types = 2},
          .columns = {activation("hidden_act", "gelu"), layers("num_hidden_layers"),
                      count("hidden_size", CARAVAN_FIELD(width)), count("num_attention_heads", CARAVAN_FIELD(heads)),
                      mlp_width("intermediate_size"), count("max_position_embeddings", CARAVAN_FIELD(context)),
                      count_or("type_vocab_size", CARAVAN_FIELD(token_types), 2),
                      real("layer_norm_eps", CARAVAN_FIELD(norm_epsilon), 1e-12), bert_tied(),
                      dropout({"hidden_dropout_prob", "attention_probs_dropout_prob"}, 0.1), classifier_dropout,
                      always("is_decoder", false), always("add_cross_attention", false),
                      words("position_embedding_type", "absolute")},
          .weights = {
              .prefix = "bert.",
              .layers = "encoder.layer",
              .first = joined({columns_of("embeddings.word_embeddings.weight", "embedding.token.weight"),
                               columns_of("embeddings.token_type_embeddings.weight", "embedding.type.weight"),
                               columns_of("embeddings.position_embeddings.weight", "embedding.position.weight"),
                               with_bias("embeddings.LayerNorm", {"embedding.norm"})}),
              .layer = joined({with_bias("attention.self.query", {"attention.query"}),
                               with_bias("attention.self.key", {"attention.key"}),
                               with_bias("attention.self.value", {"attention.value"}),
                               with_bias("attention.output.dense", {"attention.output"}),
                               with_bias("attention.output.LayerNorm", {"attention_post_norm"}),
                               with_bias("intermediate.dense", {"mlp.up"}), with_bias("output.dense", {"mlp.down"}),
                               with_bias("output.LayerNorm", {"mlp_post_norm"})}),
              .last = joined({with_bias("/cls.predictions.transform.dense", {"head.transform"}),
                              with_bias("/cls.predictions.transform.LayerNorm", {"head.norm"}),
                              columns_of("/cls.predictions.decoder.weight", "head.weight"),
                              columns_of("/cls.predictions.bias", "head.bias")}),
              .classes = joined({with_bias("pooler.dense", {"head.transform"}), with_bias("/classifier", {"head"})}),
              .unused = {"cls.seq_relationship.weight", "cls.seq_relationship.bias", "cls.predictions.decoder.bias",
                         "bert.embeddings.position_ids"},
              .unused_without_classes = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}}};
}

/// An encoder and a decoder with biases of scores by distance; unscaled scores.
ArchitectureRow t5_row() {
  Architecture arch = Architecture::llama();
  arch.positions = Positions::buckets;
  arch.is_gated = false;
  arch.activation = Activation::relu;
  arch.drops_branches = true;
  arch.drops_output = true;
  arch.scales_head = true;
  return {.name = "t5",
          .their_class = "T5ForConditionalGeneration",
          .base = {.arch = arch, .norm_epsilon = 1e-6, .score_width = 1, .encoder_layers = 2, .source_context = 128},
          .columns = {t5_layers(), count("d_model", CARAVAN_FIELD(width)), count("num_heads", CARAVAN_FIELD(heads)),
                      head_width(64, "d_kv"), mlp_width("d_ff"), t5_context(), t5_feed(),
                      count_or("relative_attention_num_buckets", CARAVAN_FIELD(buckets), 32),
                      count_or("relative_attention_max_distance", CARAVAN_FIELD(bucket_distance), 128),
                      real("layer_norm_epsilon", CARAVAN_FIELD(norm_epsilon), 1e-6), dropout({"dropout_rate"}, 0.1),
                      t5_tied(), always("is_encoder_decoder", true)},
          .weights = {.prefix = "",
                      .layers = "decoder.block",
                      .first = columns_of("shared.weight", "embedding.token.weight"),
                      .layer = t5_layer(/*is_of_encoder=*/false),
                      .last = joined({std::vector<WeightColumn>{norm_weight("decoder.final_layer_norm", "head.norm")},
                                      columns_of("lm_head.weight", "head.weight")}),
                      .encoder_layers = "encoder.block",
                      .encoder_layer = joined({t5_layer(/*is_of_encoder=*/true),
                                               columns_of("/encoder.final_layer_norm.weight", "output_norm.weight")}),
                      .unused = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight",
                                 "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"}},
          .end = 1,
          .pad = 0,
          .decoder_start = 0};
}

}  // namespace caravan

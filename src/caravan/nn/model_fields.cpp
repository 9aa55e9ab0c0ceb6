#include "caravan/nn/model_fields.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

using Text = ModelField::Text;

constexpr double kManyLayers = 10'000;
constexpr double kLargestWidth = 1 << 20;

template <class Enum>
struct Names;
#define CARAVAN_NAMES(Enum, ...)                                           \
  template <>                                                              \
  struct Names<Enum> {                                                     \
    static constexpr auto all = std::to_array<const char*>({__VA_ARGS__}); \
  };
CARAVAN_NAMES(NormKind, "layer", "rms")
CARAVAN_NAMES(NormPlace, "before", "after", "both", "sum")
CARAVAN_NAMES(Positions, "none", "learned", "rotary", "alibi", "buckets")
CARAVAN_NAMES(QkNorm, "none", "head", "whole")
CARAVAN_NAMES(Activation, "gelu_tanh", "gelu", "relu", "silu")
CARAVAN_NAMES(HeadKind, "language", "masked")
CARAVAN_NAMES(RopeScalingKind, "none", "linear", "dynamic", "llama3", "yarn", "longrope")
CARAVAN_NAMES(Gates, "softmax", "sigmoid")
CARAVAN_NAMES(BalanceScope, "sequence", "batch")
#undef CARAVAN_NAMES

/// Throws UsageError for text that is not numbers separated by commas.
std::vector<double> numbers_of(std::string_view text) {
  std::vector<double> all;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string one(text.substr(begin, end - begin));
    char* rest = nullptr;
    all.push_back(std::strtod(one.c_str(), &rest));
    if (rest == one.c_str() || *rest != 0 || !std::isfinite(all.back()) || all.back() <= 0) {
      throw UsageError({"model", "numbers", fmt::format("'{}' is not a list of numbers above 0", text), "",
                        "write them with commas: \"1, 1.5, 2\""});
    }
    begin = end + 1;
  }
  return all;
}

/// `Member` accesses the field: a lambda without captures.
template <auto Member>
Text enumeration() {
  using Enum = std::remove_reference_t<decltype(Member(std::declval<ModelConfig&>()))>;
  constexpr auto& kNames = Names<Enum>::all;
  return {[](const ModelConfig& config) -> std::string {
            return kNames.at(static_cast<size_t>(value_of<Enum>(Member, config)));
          },
          [](ModelConfig& config, std::string_view text) {
            for (size_t i = 0; i < kNames.size(); ++i) {
              if (text != kNames[i]) continue;
              Member(config) = static_cast<Enum>(i);
              return true;
            }
            return false;
          },
          {kNames.begin(), kNames.end()}};
}

template <auto Member>
Text layers() {
  return {[](const ModelConfig& config) { return value_of<LayerSet>(Member, config).to_string(); },
          [](ModelConfig& config, std::string_view text) {
            Member(config) = LayerSet::parse(text);
            return true;
          }};
}

/// Numbers, separated by commas.
template <auto Member>
Text numbers() {
  return {[](const ModelConfig& config) {
            return fmt::format("{}", fmt::join(value_of<std::vector<double>>(Member, config), ", "));
          },
          [](ModelConfig& config, std::string_view text) {
            Member(config) = numbers_of(text);
            return true;
          }};
}

ModelField number_field(const char* key, FieldRole role, const char* help, FieldAccess<int64_t> access, double least,
                        double most) {
  return {key, role, help, access, least, most};
}
ModelField real_field(const char* key, FieldRole role, const char* help, FieldAccess<double> access, double least,
                      double most) {
  return {key, role, help, access, least, most};
}
ModelField flag_field(const char* key, FieldRole role, const char* help, FieldAccess<bool> access) {
  return {key, role, help, access};
}
ModelField text_field(const char* key, FieldRole role, const char* help, Text text) {
  return {key, role, help, std::move(text)};
}
#define AT(member) \
  [](ModelConfig & config) -> auto& { return config.member; }

std::vector<ModelField> size_fields() {
  using enum FieldRole;
  return {
      number_field("model.layers", size, "blocks", AT(layers), 1, kManyLayers),
      number_field("model.width", size, "features of a token's vector", AT(width), 1, kLargestWidth),
      number_field("model.heads", size, "attention heads; a divisor of width", AT(heads), 1, 1 << 16),
      number_field("model.kv_heads", size, "key and value heads; a divisor of heads; 0: as many as heads", AT(kv_heads),
                   0, 1 << 16),
      number_field("model.head_width", size, "features of a head; 0: width / heads", AT(own_head_width), 0, 1 << 16),
      number_field("model.hidden", size, "features inside the MLP; 0: the architecture's default", AT(hidden), 0,
                   1 << 22),
      number_field("model.context", size, "tokens in a sequence; with an encoder: of the target", AT(context), 1,
                   1 << 24),
      number_field("model.encoder_layers", size,
                   "the first of the layers, which read a source that the others attend to; 0: no encoder",
                   AT(encoder_layers), 0, kManyLayers),
      number_field("model.source_context", size, "tokens in a source; 0 without an encoder", AT(source_context), 0,
                   1 << 24),
      number_field("model.token_types", shape, "vectors of which one is added to each token; 0: none", AT(token_types),
                   0, 1 << 16),
      number_field("model.classes", size, "classes of texts that the model tells apart; 0: it has logits of tokens",
                   AT(classes), 0, 1 << 24),
      number_field("model.vocabulary", size, "rows of the embedding; 0: the tokenizer's number of tokens",
                   AT(vocabulary), 0, 1 << 24),
      flag_field("model.tie_embeddings", size, "the output layer shares the weights of the token embedding",
                 AT(tie_embeddings)),
      real_field("model.dropout", history, "dropout probability", AT(dropout), 0, 0.99),
  };
}

std::vector<ModelField> layer_fields() {
  using enum FieldRole;
  return {
      text_field("model.norm", shape, "kind of the norms", enumeration<AT(arch.norm)>()),
      text_field("model.norm_place", shape,
                 "norms before a branch of a layer, after it, both, or of the stream and its sum",
                 enumeration<AT(arch.norm_place)>()),
      real_field("model.norm_epsilon", function, "added to the variance in the norms", AT(norm_epsilon), 1e-12, 1),
      flag_field("model.parallel", function, "attention and MLP of a layer read the same stream", AT(arch.is_parallel)),
      flag_field("model.one_norm", shape, "attention and MLP of a parallel layer read the same norm",
                 AT(arch.has_one_norm)),
      flag_field("model.embedding_norm", shape, "a norm of the embedding", AT(arch.embedding_norm)),
      flag_field("model.scale_embedding", function, "the embedding is multiplied by the square root of width",
                 AT(arch.scales_embedding)),
      flag_field("model.drop_branches", training,
                 "dropout of the embedding and of both branches of a layer; false: of attention weights only",
                 AT(arch.drops_branches)),
      text_field("model.activation", function, "activation of the MLP", enumeration<AT(arch.activation)>()),
      flag_field("model.gated", shape, "the MLP multiplies its features by activated gates", AT(arch.is_gated)),
      flag_field("model.mlp_bias", shape, "the layers of the MLP have biases", AT(arch.mlp_bias)),
      flag_field("model.qkv_bias", shape, "queries, keys and values have biases", AT(arch.qkv_bias)),
      flag_field("model.output_bias", shape, "the output of attention has a bias", AT(arch.output_bias)),
      flag_field("model.causal", function, "a token sees earlier ones only; false: all of its text",
                 AT(arch.is_causal)),
      text_field("model.head", shape, "what comes before the logits: the last norm, or BERT's transform and bias",
                 enumeration<AT(arch.head)>()),
      flag_field("model.scale_head", function, "hidden states are divided by the square root of width before the head",
                 AT(arch.scales_head)),
      flag_field("model.drop_output", training, "dropout of what the last layer returns, of an encoder too",
                 AT(arch.drops_output)),
      text_field("model.qk_norm", shape, "norms of queries and keys, of each head or of all",
                 enumeration<AT(arch.qk_norm)>()),
      real_field("model.score_width", function, "attention scores are divided by its square root; 0: head_width",
                 AT(score_width), 0, 1e6),
      real_field("model.attention_cap", function, "scores s become cap tanh(s / cap); 0: no cap", AT(attention_cap), 0,
                 1e6),
      real_field("model.logits_cap", function, "the same for the logits", AT(logits_cap), 0, 1e6),
      number_field("model.window", function, "tokens that a token sees, itself included; 0: all before it", AT(window),
                   0, 1 << 24),
      text_field("model.full_layers", function, "layers without the window: \"every 6\", or numbers from 0: \"1, 3\"",
                 layers<AT(full_layers)>()),
  };
}

std::vector<ModelField> position_fields() {
  using enum FieldRole;
  const auto of_yarn = [](const char* key, const char* help, FieldAccess<double> access) {
    return real_field(key, function, help, access, 0, 1e6);
  };
  return {
      text_field("model.positions", shape, "how tokens know their positions", enumeration<AT(arch.positions)>()),
      number_field("model.buckets", function, "buckets of distances", AT(buckets), 4, 1 << 16),
      number_field("model.bucket_distance", function, "distances from this on are in the last bucket",
                   AT(bucket_distance), 3, 1 << 24),
      real_field("model.rope_theta", function, "base of the rotary position frequencies", AT(rope_theta), 1, 1e12),
      real_field("model.local_rope_theta", function, "that of layers with a window; 0: the same", AT(local_rope_theta),
                 0, 1e12),
      real_field("model.rope_fraction", function, "the part of a head's features that is rotated", AT(rope_fraction), 0,
                 1),
      text_field("model.unrotated_layers", function, "layers that do not rotate: \"every 4\", or numbers from 0",
                 layers<AT(unrotated_layers)>()),
      text_field("model.rope_scaling", function, "how the frequencies are scaled for longer texts",
                 enumeration<AT(rope_scaling.kind)>()),
      real_field("model.rope_factor", function, "factor of the scaling", AT(rope_scaling.factor), 1, 1e6),
      number_field("model.rope_original_context", function,
                   "dynamic, llama3, yarn: the context before scaling; 0: model.context",
                   AT(rope_scaling.original_context), 0, 1 << 24),
      real_field("model.rope_low_frequency", function, "llama3: fewer periods in the original context are scaled fully",
                 AT(rope_scaling.low_frequency), 1e-6, 1e6),
      real_field("model.rope_high_frequency", function, "llama3: more periods in it are not scaled",
                 AT(rope_scaling.high_frequency), 1e-6, 1e6),
      real_field("model.rope_attention_factor", function, "yarn, longrope: of cosines and sines; 0: by the rule",
                 AT(rope_scaling.attention_factor), 0, 1e6),
      of_yarn("model.rope_beta_fast", "yarn: pairs that turn more often in the original context are kept",
              AT(rope_scaling.beta_fast)),
      of_yarn("model.rope_beta_slow", "yarn: pairs that turn less often are scaled fully", AT(rope_scaling.beta_slow)),
      of_yarn("model.rope_mscale", "yarn: with mscale_all, of the rule of the attention factor; 0: not given",
              AT(rope_scaling.mscale)),
      of_yarn("model.rope_mscale_all", "yarn: divides that rule; 0: not given", AT(rope_scaling.mscale_all)),
      flag_field("model.rope_truncate", function, "yarn: the range between kept and scaled pairs has whole ends",
                 AT(rope_scaling.truncate)),
      text_field("model.rope_short_factors", function, "longrope: divisors of the frequencies: \"1, 1.5\"",
                 numbers<AT(rope_scaling.short_factors)>()),
      text_field("model.rope_long_factors", function, "longrope: those of texts beyond the original context",
                 numbers<AT(rope_scaling.long_factors)>()),
  };
}

std::vector<ModelField> expert_fields() {
  using enum FieldRole;
  return {
      number_field("moe.experts", shape, "experts in place of each layer's MLP, of model.hidden features each; 0: none",
                   AT(moe.experts), 0, 1 << 16),
      number_field("moe.top_k", function, "experts that a token goes to", AT(moe.top_k), 1, 1 << 16),
      text_field("moe.gates", function, "how scores become gates", enumeration<AT(moe.gates)>()),
      flag_field("moe.normalize", function, "the gates of a token are divided by their sum", AT(moe.normalize)),
      number_field("moe.shared", size, "features of an expert that every token goes to as well; 0: none",
                   AT(moe.shared_hidden), 0, 1 << 22),
      flag_field("moe.shared_gate", shape, "the shared expert has a gate, the sigmoid of a separate score",
                 AT(moe.shared_gate)),
      text_field("moe.dense_layers", shape, "layers with one MLP instead: \"every 2\", or numbers from 0",
                 layers<AT(moe.dense_layers)>()),
      number_field("moe.dense_hidden", size, "features of that MLP; 0: the architecture's default",
                   AT(moe.dense_hidden), 0, 1 << 22),
      real_field(
          "moe.capacity", history,
          "copies of a sequence's tokens that an expert takes in training, as a multiple of an even share; 0: all",
          AT(moe.capacity), 0, 1e6),
      text_field("moe.balance", history, "over what experts are balanced: each sequence, or the step's batch",
                 enumeration<AT(moe.balance)>()),
      real_field("moe.balance_loss", history, "factor of the balance loss; 0: none", AT(moe.balance_loss), 0, 1e3),
      real_field("moe.z_loss", history, "factor of the squares of the router's log-sum-exps; 0: none", AT(moe.z_loss),
                 0, 1e3),
  };
}

#undef AT

struct TextOf {
  const ModelConfig& config;
  template <class T>
  std::string operator()(FieldAccess<T> access) const {
    return fmt::format("{}", value_of(access, config));
  }
  std::string operator()(const Text& text) const { return text.get(config); }
};

struct Copy {
  const ModelConfig& from;
  ModelConfig& to;
  template <class T>
  void operator()(FieldAccess<T> access) const {
    access(to) = value_of(access, from);
  }
  void operator()(const Text& text) const { text.set(to, text.get(from)); }
};

}  // namespace

std::string ModelField::text_of(const ModelConfig& config) const { return std::visit(TextOf{config}, access); }

void ModelField::copy(const ModelConfig& from, ModelConfig& to) const { std::visit(Copy{from, to}, access); }

const std::vector<ModelField>& model_fields() {
  static const std::vector<ModelField> fields = [] {
    std::vector<ModelField> all;
    for (auto& part : {size_fields(), layer_fields(), position_fields(), expert_fields()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return fields;
}

}  // namespace caravan

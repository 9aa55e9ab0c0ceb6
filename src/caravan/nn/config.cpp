#include "caravan/nn/config.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/nn/lora.h"

namespace caravan {
namespace {

[[noreturn]] void refuse(std::string_view key, std::string fact, std::string action) {
  throw UsageError({"model", fmt::format("model.{}", key), std::move(fact), "", std::move(action)});
}

/// These limits keep every product of sizes within 63 bits; they are far above any real model.
void check_range(std::string_view key, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  refuse(key, fmt::format("{} is not between {} and {}", value, least, most),
         fmt::format("the nearest valid value is {}", value < least ? least : most));
}

void check_real(std::string_view key, double value, bool is_valid, std::string_view range, std::string_view example) {
  if (!std::isfinite(value) || !is_valid) {
    refuse(key, fmt::format("{} is not {}", value, range), fmt::format("a usual value is {}", example));
  }
}

/// The divisors of `whole` that `fits` accepts, one up to `number` and one above it: "6 or 8".
template <class Fits>
std::string nearest_divisors(int64_t whole, int64_t number, Fits fits) {
  std::vector<int64_t> all = divisors(whole);
  std::erase_if(all, [&](int64_t d) { return !fits(d); });
  return join(nearest(all, number, 1), " or ");
}

void check_head_width(const ModelConfig& c) {
  const int64_t rotated = c.rotated_width();
  if (!c.arch.rotates() || (rotated > 0 && rotated % 2 == 0)) return;
  if (c.rope_fraction != 1) {
    refuse("rope_fraction",
           fmt::format("{} of {} features, {}, cannot be rotated in pairs", c.rope_fraction, c.head_width(), rotated),
           fmt::format("use {}", static_cast<double>(rotated + 2 - rotated % 2) / static_cast<double>(c.head_width())));
  }
  refuse("head_width", fmt::format("heads of width {} cannot be rotated in pairs", c.own_head_width),
         fmt::format("use head_width = {}", c.own_head_width + 1));
}

void check_heads(const ModelConfig& c) {
  const bool rotates = c.arch.rotates();
  if (c.own_head_width == 0) {
    const auto even_heads = [&](int64_t heads) { return !rotates || c.width / heads % 2 == 0; };
    if (c.width % c.heads != 0 || (c.rope_fraction == 1 && !even_heads(c.heads))) {
      const std::string valid = nearest_divisors(c.width, c.heads, even_heads);
      const std::string fact = c.width % c.heads != 0
                                   ? fmt::format("{} heads do not divide width {}", c.heads, c.width)
                                   : fmt::format("heads of width {} cannot be rotated in pairs", c.width / c.heads);
      const int64_t unit = rotates ? 2 * c.heads : c.heads;
      const std::string widths = fmt::format("a width that is a multiple of {}, such as {}", unit,
                                             std::max<int64_t>(1, (c.width + unit / 2) / unit) * unit);
      refuse("heads", fact, valid.empty() ? "use " + widths : fmt::format("use heads = {}, or {}", valid, widths));
    }
  }
  check_head_width(c);
  if (c.heads % c.num_kv_heads() != 0) {
    refuse("kv_heads", fmt::format("{} kv_heads do not divide {} heads", c.kv_heads, c.heads),
           fmt::format("use kv_heads = {}", nearest_divisors(c.heads, c.kv_heads, [](int64_t) { return true; })));
  }
}

void check_layers(std::string_view key, const LayerSet& set, const ModelConfig& c) {
  if (set.last_listed() < c.layers) return;
  refuse(key, fmt::format("layer {} of {}, which are numbered from 0", set.last_listed(), c.layers),
         fmt::format("the last layer is {}", c.layers - 1));
}

void check_scaling(const ModelConfig& c) {
  const RopeScaling& scaling = c.rope_scaling;
  if (!scaling.is_used()) return;
  check_real("rope_factor", scaling.factor, scaling.factor >= 1, "at least 1", "8");
  const bool is_ordered = scaling.low_frequency > 0 && scaling.high_frequency > scaling.low_frequency;
  check_real("rope_high_frequency", scaling.high_frequency, is_ordered, "above rope_low_frequency, above 0", "4");
  if (scaling.kind == RopeScalingKind::dynamic && scaling.original_context == 0) {
    refuse("rope_original_context", "is not given, and a dynamic scaling is of texts beyond it",
           "set it to the context that the model was first trained with");
  }
  const auto pairs = static_cast<size_t>(c.rotated_width() / 2);
  if (scaling.kind == RopeScalingKind::longrope &&
      (scaling.short_factors.size() != pairs || scaling.long_factors.size() != pairs)) {
    refuse("rope_scaling",
           fmt::format("longrope has {} short and {} long factors for {} frequencies", scaling.short_factors.size(),
                       scaling.long_factors.size(), pairs),
           "give one of each for each frequency: a config.json has them");
  }
}

/// Encoders, and models that are not causal.
void check_texts(const ModelConfig& c) {
  check_range("encoder_layers", c.encoder_layers, 0, c.layers - 1);
  check_range("source_context", c.source_context, c.has_encoder() ? 1 : 0, c.has_encoder() ? 1 << 28 : 0);
  check_range("token_types", c.token_types, 0, 1 << 16);
  check_range("classes", c.classes, 0, 1 << 24);
  check_range("buckets", c.buckets, 4, 1 << 16);
  if (c.bucket_distance <= c.buckets / 2) {
    refuse("bucket_distance", fmt::format("{} is not above half of {} buckets", c.bucket_distance, c.buckets),
           fmt::format("use {}", 4 * c.buckets));
  }
  const bool has_full = c.has_encoder() || !c.arch.is_causal;
  if (has_full && (c.window > 0 || c.arch.positions == Positions::alibi)) {
    refuse(c.window > 0 ? "window" : "positions",
           fmt::format("{} in layers that see a whole text", c.window > 0 ? "a window" : "slopes"),
           c.window > 0 ? "use window = 0" : "use \"buckets\", \"rotary\" or \"learned\"");
  }
  if (c.arch.head == HeadKind::masked && c.classes == 0 && c.arch.has_last_norm()) {
    refuse("head", "a head of masked tokens, whose norm is not that of the stream",
           "use norm_place = \"sum\", or head = \"language\"");
  }
  if (!c.has_encoder()) return;
  if (!c.arch.is_causal) {
    refuse("causal", "a decoder that reads an encoder's states and sees its whole text", "use causal = true");
  }
  const auto refuse_with = [](std::string_view key, std::string_view what, std::string action) {
    refuse(key, fmt::format("{} with an encoder", what), std::move(action));
  };
  if (c.arch.positions != Positions::buckets) refuse_with("positions", "other than buckets", "use \"buckets\"");
  if (c.arch.is_parallel) refuse_with("parallel", "parallel branches", "use parallel = false");
  if (c.arch.head == HeadKind::masked) refuse_with("head", "a head of masked tokens", "use head = \"language\"");
  if (c.classes > 0) refuse_with("classes", "classes of texts", "let the model write the name of the class");
  if (c.token_types > 0) refuse_with("token_types", "types of tokens", "use token_types = 0");
  if (c.moe.is_used()) {
    throw UsageError({"model", "moe.experts", "experts with an encoder", "", "use experts = 0"});
  }
}

/// Numbers of which 0 means none.
void check_caps(const ModelConfig& c) {
  const auto check = [](std::string_view key, double value, std::string_view usual) {
    check_real(key, value, value >= 0, "0 or more", usual);
  };
  check("attention_cap", c.attention_cap, "0 or 50");
  check("logits_cap", c.logits_cap, "0 or 30");
  check("score_width", c.score_width, "0, the width of a head");
  check_real("local_rope_theta", c.local_rope_theta, c.local_rope_theta == 0 || c.local_rope_theta > 1, "0 or above 1",
             "10000");
}

void check_experts(const ModelConfig& c) {
  const MoeConfig& moe = c.moe;
  const auto refuse_moe = [](std::string_view key, std::string fact, std::string action) {
    throw UsageError({"model", fmt::format("moe.{}", key), std::move(fact), "", std::move(action)});
  };
  if (moe.experts < 0 || moe.experts > 1 << 16) {
    refuse_moe("experts", fmt::format("{} is not between 0 and {}", moe.experts, 1 << 16), "a usual value is 8");
  }
  if (!moe.is_used()) return;
  if (moe.top_k < 1 || moe.top_k > moe.experts) {
    refuse_moe("top_k", fmt::format("a token goes to {} of {} experts", moe.top_k, moe.experts),
               fmt::format("use top_k = {}", std::clamp<int64_t>(moe.top_k, 1, moe.experts)));
  }
  if (moe.shared_hidden < 0 || moe.shared_hidden > 1 << 22) {
    refuse_moe("shared", fmt::format("a shared expert of width {}", moe.shared_hidden), "use 0, or its width");
  }
  if (moe.shared_gate && !moe.has_shared()) {
    refuse_moe("shared_gate", "gates a shared expert, and there is none", "set moe.shared to its width");
  }
  const auto check = [&](std::string_view key, double value, const char* usual) {
    if (!std::isfinite(value) || value < 0) {
      refuse_moe(key, fmt::format("{} is below 0 or not a number", value), fmt::format("a usual value is {}", usual));
    }
  };
  check("capacity", moe.capacity, "0 or 1.25");
  check("balance_loss", moe.balance_loss, "0.01");
  check("z_loss", moe.z_loss, "0 or 0.001");
  const bool has_dense = c.num_expert_layers() < c.layers;
  if (moe.dense_layers.last_listed() >= c.layers || c.num_expert_layers() == 0 ||
      (!has_dense && !moe.dense_layers.empty() && c.layers > 1)) {
    refuse_moe("dense_layers", fmt::format("\"{}\" of {} layers", moe.dense_layers.to_string(), c.layers),
               "name some of the layers, which are numbered from 0, and not all of them");
  }
  if (moe.dense_hidden < 0 || moe.dense_hidden > 1 << 22) {
    refuse_moe("dense_hidden", fmt::format("an MLP of width {}", moe.dense_hidden), "use 0, or its width");
  }
  if (moe.capacity > 0 && moe.balances_batch()) {
    refuse_moe("capacity", "experts of limited capacity take the tokens of a sequence in order, and a batch has none",
               "use moe.balance = \"sequence\", or leave the capacity at 0");
  }
}

}  // namespace

double LoraConfig::scale() const noexcept {
  const auto number = static_cast<double>(rank);
  return alpha / (rslora ? std::sqrt(number) : number);
}

bool LoraConfig::saves(std::string_view module) const noexcept {
  return std::ranges::find(saved, module) != saved.end();
}

int64_t ModelConfig::rotated_width() const noexcept {
  return static_cast<int64_t>(static_cast<double>(head_width()) * rope_fraction);
}

namespace {

/// Of an MLP whose width is given, or 0.
int64_t mlp_width(const ModelConfig& c, int64_t given) {
  if (given != 0) return given;
  if (!c.arch.is_gated) return 4 * c.width;
  return (8 * c.width + 3 * 64 - 1) / (3 * 64) * 64;
}

}  // namespace

int64_t ModelConfig::hidden_width() const noexcept { return mlp_width(*this, hidden); }

int64_t ModelConfig::dense_width() const noexcept {
  return mlp_width(*this, moe.is_used() ? moe.dense_hidden : hidden);
}

int64_t ModelConfig::num_expert_layers() const noexcept {
  int64_t count = 0;
  for (int64_t layer = 0; layer < layers; ++layer) count += has_experts(layer) ? 1 : 0;
  return count;
}

void ModelConfig::validate() const {
  check_range("layers", layers, 1, 1 << 16);
  check_range("width", width, 1, 1 << 20);
  check_range("heads", heads, 1, 1 << 20);
  check_range("kv_heads", kv_heads, 0, heads);
  check_range("context", context, 1, 1 << 28);
  check_range("vocabulary", vocabulary, 1, 1 << 28);
  check_range("hidden", hidden, 0, 1 << 22);
  check_range("head_width", own_head_width, 0, 1 << 16);
  check_range("window", window, 0, 1 << 28);
  check_real("rope_fraction", rope_fraction, rope_fraction > 0 && rope_fraction <= 1, "above 0 and at most 1", "1");
  check_heads(*this);
  check_experts(*this);
  check_lora(*this);
  check_layers("full_layers", full_layers, *this);
  check_layers("unrotated_layers", unrotated_layers, *this);
  if (arch.has_one_norm && (!arch.is_parallel || arch.norm_place != NormPlace::before)) {
    refuse("one_norm", "two branches that are not parallel, or have norms after them, cannot read one norm",
           "use parallel = true and norm_place = \"before\", or one_norm = false");
  }
  check_texts(*this);
  check_scaling(*this);
  check_caps(*this);
  check_real("dropout", dropout, dropout >= 0 && dropout < 1, "in [0, 1)", "0 or 0.1");
  check_real("norm_epsilon", norm_epsilon, norm_epsilon > 0, "above 0", "1e-5");
  check_real("rope_theta", rope_theta, rope_theta > 1, "above 1", "10000");
}

namespace {

/// Matrices of an MLP.
int64_t num_matrices(const Architecture& arch) { return arch.is_gated ? 3 : 2; }

/// Parameters of an MLP.
int64_t mlp_parameters(const ModelConfig& c, int64_t hidden) {
  const int64_t matrices = num_matrices(c.arch);
  return matrices * c.width * hidden + (c.arch.mlp_bias ? (matrices - 1) * hidden + c.width : 0);
}

/// Parameters of a mixture of experts.
int64_t expert_parameters(const ModelConfig& c) {
  const MoeConfig& moe = c.moe;
  const int64_t router = c.width * moe.experts;
  const int64_t shared = moe.has_shared() ? mlp_parameters(c, moe.shared_hidden) + (moe.shared_gate ? c.width : 0) : 0;
  return router + moe.experts * mlp_parameters(c, c.hidden_width()) + shared;
}

int64_t norms_of_layer(const Architecture& arch) {
  const int64_t before = arch.has_norms_before() ? (arch.has_one_norm ? 1 : 2) : 0;
  return before + (arch.has_norms_after() ? 2 : 0);
}

int64_t attention_parameters(const ModelConfig& c) {
  const int64_t projected = c.query_width() + 2 * c.kv_width();
  const int64_t biases = (c.arch.qkv_bias ? projected : 0) + (c.arch.output_bias ? c.width : 0);
  int64_t norms = 0;
  if (c.arch.qk_norm == QkNorm::head) norms = 2 * c.head_width();
  if (c.arch.qk_norm == QkNorm::whole) norms = c.query_width() + c.kv_width();
  return c.width * (projected + c.query_width()) + biases + norms * (c.arch.has_norm_bias() ? 2 : 1);
}

}  // namespace

int64_t ModelConfig::num_parameters() const noexcept {
  const int64_t norm = (arch.has_norm_bias() ? 2 : 1) * width;
  const int64_t norms = norms_of_layer(arch) * norm;
  const int64_t layer = attention_parameters(*this) + norms;
  const int64_t with_experts = num_expert_layers();
  const int64_t feeds = (with_experts > 0 ? with_experts * expert_parameters(*this) : 0) +
                        (layers - with_experts) * mlp_parameters(*this, dense_width());
  int64_t stacks = arch.positions == Positions::buckets ? buckets * heads : 0;
  int64_t of_encoder = 0;
  if (has_encoder()) {
    of_encoder = (layers - encoder_layers) * (attention_parameters(*this) + norms / 2);  // the cross attention
    of_encoder += stacks + (arch.has_last_norm() ? norm : 0);
  }
  const int64_t words = (vocabulary + token_types + (arch.positions == Positions::learned ? context : 0)) * width;
  int64_t head = (ties_head() ? 0 : num_outputs() * width) + (has_head_norm() ? norm : 0);
  if (has_transform()) head += width * width + width + num_outputs();
  return words + (arch.embedding_norm ? norm : 0) + stacks + layers * layer + feeds + of_encoder + head +
         adapter_parameters(*this);
}

double ModelConfig::forward_flops_of_layer(int64_t layer, int64_t length) const noexcept {
  const auto h = static_cast<double>(width);
  const auto queries = static_cast<double>(query_width());
  const auto keys = static_cast<double>(kv_width());
  const auto of_mlp = [&](int64_t features) {
    return 2 * static_cast<double>(num_matrices(arch)) * h * static_cast<double>(features);
  };
  const auto source = static_cast<double>(source_context);
  const auto tokens = is_of_encoder(layer) ? source : static_cast<double>(length);
  const int64_t seen = window_of(layer);
  const double visible = seen == 0 ? tokens : std::min(tokens, static_cast<double>(seen));
  double of_token = 4 * h * (queries + keys) + 4 * visible * queries;
  if (has_experts(layer)) {
    of_token += of_mlp(moe.top_k * hidden_width() + moe.shared_hidden) + 2 * h * static_cast<double>(moe.experts);
  } else {
    of_token += of_mlp(dense_width());
  }
  double flops = tokens * of_token;
  if (has_encoder() && !is_of_encoder(layer)) {  // queries and output of the target; keys and values of the source
    flops += 4 * h * (tokens * queries + source * keys) + 4 * tokens * source * queries;
  }
  return flops;
}

double ModelConfig::forward_flops_of_head(int64_t length) const noexcept {
  const auto h = static_cast<double>(width);
  const double of_token = 2 * h * static_cast<double>(num_outputs()) + (has_transform() ? 2 * h * h : 0);
  return static_cast<double>(length) * of_token;
}

double ModelConfig::flops_per_token(int64_t length) const noexcept {
  double forward = forward_flops_of_head(length);
  for (int64_t layer = 0; layer < layers; ++layer) forward += forward_flops_of_layer(layer, length);
  forward /= static_cast<double>(source_context + length);
  // A frozen weight has no gradient, which saves a third of its products.
  if (!lora.is_used()) return 3 * forward;
  const double of_head = lora.saves("head") ? forward_flops_of_head(length) : 0;
  return 2 * forward + of_head / static_cast<double>(source_context + length) +
         3 * 2 * static_cast<double>(adapter_parameters_of_token(*this));
}

ModelConfig resolved(ModelConfig config) {
  const ModelConfig usual;
  config.hidden = config.hidden_width();
  config.kv_heads = config.num_kv_heads();
  config.own_head_width = config.head_width();
  if (config.score_width == 0) config.score_width = static_cast<double>(config.own_head_width);
  if (config.moe.is_used()) {
    config.moe.dense_hidden = config.moe.dense_layers.empty() ? 0 : config.dense_width();
    config.moe.dense_layers = LayerSet::of(config.moe.dense_layers.members(config.layers));
  } else {
    config.moe = {};
  }
  if (config.window == 0) {
    config.full_layers = {};
    config.local_rope_theta = 0;
  }
  config.full_layers = LayerSet::of(config.full_layers.members(config.layers));
  config.unrotated_layers = LayerSet::of(config.unrotated_layers.members(config.layers));
  if (!config.arch.rotates()) {
    config.rope_theta = usual.rope_theta;
    config.rope_fraction = 1;
    config.unrotated_layers = {};
  }
  if (config.arch.positions != Positions::buckets) {
    config.buckets = usual.buckets;
    config.bucket_distance = usual.bucket_distance;
  }
  if (config.classes > 0) {
    config.arch.head = HeadKind::language;
    config.tie_embeddings = usual.tie_embeddings;
  }
  RopeScaling& scaling = config.rope_scaling;
  if (!config.arch.rotates() || !scaling.is_used()) scaling = {};
  if (scaling.original_context == 0) scaling.original_context = config.context;
  if (scaling.kind == RopeScalingKind::none || scaling.kind == RopeScalingKind::linear) {
    scaling = {.kind = scaling.kind, .factor = scaling.factor};
  }
  if (scaling.kind != RopeScalingKind::llama3) {
    scaling.low_frequency = RopeScaling{}.low_frequency;
    scaling.high_frequency = RopeScaling{}.high_frequency;
  }
  return config;
}

ModelConfig first_layers(ModelConfig config, int64_t layers) {
  if (config.has_encoder()) {
    layers = std::max<int64_t>(layers, 2);
    if (layers < config.layers) {
      config.encoder_layers =
          std::clamp<int64_t>((config.encoder_layers * layers + config.layers / 2) / config.layers, 1, layers - 1);
    }
  }
  if (layers >= config.layers) return config;
  config.layers = layers;
  for (LayerSet* set : {&config.full_layers, &config.unrotated_layers, &config.moe.dense_layers}) {
    if (set->last_listed() >= layers) *set = LayerSet::of(set->members(layers));
  }
  return config;
}

}  // namespace caravan

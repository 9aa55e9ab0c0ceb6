#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/text.h"
#include "caravan/formats/huggingface/architectures/columns.h"

namespace caravan::columns {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

/// Of equal ones the first is written.
constexpr std::array<std::pair<const char*, RopeScalingKind>, 7> kKinds{{{"default", RopeScalingKind::none},
                                                                         {"linear", RopeScalingKind::linear},
                                                                         {"dynamic", RopeScalingKind::dynamic},
                                                                         {"llama3", RopeScalingKind::llama3},
                                                                         {"yarn", RopeScalingKind::yarn},
                                                                         {"longrope", RopeScalingKind::longrope},
                                                                         {"su", RopeScalingKind::longrope}}};

RopeScalingKind scaling_kind(const ConfigReader& in) {
  const std::string type = in.text_or("rope_type", in.text_or("type", "default"));
  std::vector<std::string> names;
  for (const auto& [name, kind] : kKinds) {
    if (type == name) return kind;
    names.emplace_back(name);
  }
  in.refuse("rope_type", fmt::format("is '{}'; there are {}", type, join(names)),
            fmt::format("import a model with one of these: the nearest is '{}'", nearest(type, names)));
}

const char* name_of(RopeScalingKind kind) {
  return std::ranges::find(kKinds, kind, [](const auto& one) { return one.second; })->first;
}

constexpr const char* kOriginal = "original_max_position_embeddings";

/// As in transformers, original_max_position_embeddings at the top level takes precedence over the member of the
/// scaling, unless layers have rotations of their own.
int64_t original_context(const ConfigReader& file, const ConfigReader& scaling, const RopeKeys& keys,
                         const ModelConfig& config) {
  if (keys.original_key != nullptr) return file.count_or(keys.original_key, keys.original);
  if (keys.local_key == nullptr && file.find(kOriginal) != nullptr) return file.count(kOriginal);
  return scaling.count_or(kOriginal, config.context);  // which a recipe may change
}

/// Of linear nothing depends on it, and of dynamic it is max_position_embeddings.
bool has_original_context(RopeScalingKind kind) {
  return kind != RopeScalingKind::linear && kind != RopeScalingKind::dynamic;
}

/// The members of a scaling beside its kind.
void read_scaling(const ConfigReader& in, const RopeKeys& keys, const ModelConfig& config, RopeScaling& scaling) {
  const bool has_factor = scaling.kind != RopeScalingKind::longrope;
  if (has_factor && in.find("factor") == nullptr) {
    in.refuse("factor", "is missing", "take the config.json that belongs to the weights");
  }
  const auto original = static_cast<double>(scaling.original_context);
  const double ratio = std::max(1.0, static_cast<double>(config.context) / original);
  scaling.factor = has_factor ? in.real_or("factor", 1) : std::max(1.0, in.real_or("factor", ratio));
  scaling.attention_factor = in.real_or("attention_factor", 0);
  const RopeScaling usual;
  scaling.low_frequency = in.real_or("low_freq_factor", usual.low_frequency);
  scaling.high_frequency = in.real_or("high_freq_factor", usual.high_frequency);
  const auto not_zero = [&](const char* key, double absent) {  // 0 counts as missing
    const double value = in.real_or(key, absent);
    return value == 0 ? absent : value;
  };
  scaling.beta_fast = not_zero("beta_fast", usual.beta_fast);
  scaling.beta_slow = not_zero("beta_slow", usual.beta_slow);
  scaling.mscale = in.real_or("mscale", 0);
  scaling.mscale_all = in.real_or("mscale_all_dim", 0);
  scaling.truncate = keys.local_key != nullptr || in.flag_or("truncate", true);  // ignored there
  scaling.short_factors = in.reals_or("short_factor", {});
  scaling.long_factors = in.reals_or("long_factor", {});
}

void read_rope(const ConfigReader& in, const RopeKeys& keys, ModelConfig& config) {
  config.rope_theta = in.real_or(keys.theta_key, keys.theta);
  config.rope_fraction = keys.fraction_key == nullptr ? 1 : in.real_or(keys.fraction_key, keys.fraction);
  config.local_rope_theta = keys.local_key == nullptr ? 0 : in.real_or(keys.local_key, keys.local_theta);
  RopeScaling scaling;
  const auto read = [&](const ConfigReader& of) {
    scaling.kind = scaling_kind(of);
    if (keys.original_key != nullptr && scaling.kind == RopeScalingKind::yarn) {  // in files of old versions
      scaling.kind = RopeScalingKind::longrope;
    }
    config.rope_theta = of.real_or("rope_theta", config.rope_theta);
    if (keys.fraction_key == nullptr) {
      of.require("partial_rotary_factor", 1, 1, "a part of each head is rotated");
    } else {
      config.rope_fraction = of.real_or("partial_rotary_factor", config.rope_fraction);
    }
    if (!scaling.is_used()) return;
    if (has_original_context(scaling.kind)) scaling.original_context = original_context(in, of, keys, config);
    read_scaling(of, keys, config, scaling);
  };
  const auto old = in.below("rope_scaling");
  const auto rope = in.below("rope_parameters");
  if (keys.local_key != nullptr) {
    const auto full = rope ? rope->below(kFull) : std::nullopt;
    ConfigReader::Json both = full ? *rope->find(kFull) : ConfigReader::Json::object();
    if (old) both.update(*in.find("rope_scaling"));
    const ConfigReader merged = in.over(both, full ? "rope_parameters.full_attention." : "rope_scaling.");
    if (merged.find("rope_type") == nullptr && merged.find("type") != nullptr) {
      in.refuse("rope_scaling", "has a type, which transformers does not read here", "rename it to rope_type");
    }
    if (full || old) read(merged);
    if (const auto local = rope ? rope->below(kSliding) : std::nullopt) {
      local->require("rope_type", std::initializer_list<std::string_view>{"default"}, "default");
      config.local_rope_theta = local->real_or("rope_theta", config.local_rope_theta);
    }
    if (rope && !full && rope->find("rope_type") != nullptr) {
      in.refuse("rope_parameters", "is not of full_attention and sliding_attention",
                "put them into a member full_attention");
    }
  } else if (old && !old->is_empty()) {  // takes precedence over the newer key
    read(*old);
  } else if (rope) {
    read(*rope);
  }
  if (scaling.kind == RopeScalingKind::dynamic) {  // their context is the one before scaling
    scaling.original_context = config.context;
    config.context = static_cast<int64_t>(static_cast<double>(config.context) * scaling.factor);
  }
  config.rope_scaling = scaling.is_used() ? scaling : RopeScaling{};
}

Json scaling_json(const ModelConfig& config, const RopeKeys& keys) {
  const RopeScaling& scaling = config.rope_scaling;
  Json out{{"rope_type", name_of(scaling.kind)}, {"rope_theta", config.rope_theta}};
  if (keys.fraction_key != nullptr) out["partial_rotary_factor"] = config.rope_fraction;
  if (!scaling.is_used()) return out;
  const int64_t original = scaling.original_context == 0 ? config.context : scaling.original_context;
  const auto add = [&](const char* key, double value, double usual) {
    if (value != usual) out[key] = value;
  };
  const RopeScaling usual;
  out["factor"] = scaling.factor;
  add("attention_factor", scaling.attention_factor, 0);
  switch (scaling.kind) {
    case RopeScalingKind::llama3:
      out["low_freq_factor"] = scaling.low_frequency;
      out["high_freq_factor"] = scaling.high_frequency;
      out[kOriginal] = original;
      break;
    case RopeScalingKind::yarn:
      out[kOriginal] = original;
      add("beta_fast", scaling.beta_fast, usual.beta_fast);
      add("beta_slow", scaling.beta_slow, usual.beta_slow);
      add("mscale", scaling.mscale, 0);
      add("mscale_all_dim", scaling.mscale_all, 0);
      if (!scaling.truncate) out["truncate"] = false;
      break;
    case RopeScalingKind::longrope:
      out["short_factor"] = scaling.short_factors;
      out["long_factor"] = scaling.long_factors;
      out[kOriginal] = original;
      break;
    default: break;
  }
  return out;
}

void write_rope(const ModelConfig& config, const RopeKeys& keys, Json& out) {
  const Json full = scaling_json(config, keys);
  out[keys.theta_key] = config.rope_theta;  // these are read by transformers 4
  if (keys.fraction_key != nullptr) out[keys.fraction_key] = config.rope_fraction;
  if (keys.original_key != nullptr) {
    const int64_t original = config.rope_scaling.original_context;
    out[keys.original_key] = original == 0 ? config.context : original;
  }
  if (config.rope_scaling.is_used()) out["rope_scaling"] = full;
  if (config.rope_scaling.kind == RopeScalingKind::dynamic) {
    out["max_position_embeddings"] = config.rope_scaling.original_context;
  }
  if (keys.local_key == nullptr) {
    out["rope_parameters"] = full;
    return;
  }
  const double local = config.local_rope_theta == 0 ? config.rope_theta : config.local_rope_theta;
  out[keys.local_key] = local;
  out["rope_parameters"] = {{kFull, full}, {kSliding, {{"rope_type", "default"}, {"rope_theta", local}}}};
}

bool is_by_types(WindowRule rule) { return rule != WindowRule::all && rule != WindowRule::if_used; }
bool has_use_flag(WindowRule rule) {
  return rule != WindowRule::all && rule != WindowRule::types && rule != WindowRule::types_or_all;
}

/// The layers without the window where layer_types does not say it.
std::vector<bool> full_layers_of(const ConfigReader& in, WindowRule rule, const ModelConfig& config) {
  std::vector<bool> is_full = config.full_layers.members(config.layers);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const auto i = static_cast<size_t>(layer);
    switch (rule) {
      case WindowRule::all:
      case WindowRule::types_or_all:
      case WindowRule::if_used: is_full[i] = false; break;
      case WindowRule::types: break;
      case WindowRule::types_if_used: is_full[i] = layer < in.number_or("max_window_layers", 28); break;
      case WindowRule::types_unrotated: is_full[i] = !config.unrotated_layers.has(layer); break;
      case WindowRule::types_early:
        is_full[i] = layer % 2 == 1 || layer >= in.number_or("max_window_layers", 28);
        break;
    }
  }
  return is_full;
}

void read_window(const ConfigReader& in, WindowRule rule, int64_t absent, ModelConfig& config) {
  const bool is_used = !has_use_flag(rule) || in.flag_or("use_sliding_window", false);
  const int64_t given = in.has("sliding_window") ? in.number_or("sliding_window", 0) : absent;  // null or 0: none
  config.window = is_used ? given : 0;
  std::vector<bool> is_full = full_layers_of(in, rule, config);
  if (is_by_types(rule)) is_full = in.types_or("layer_types", config.layers, kFull, kSliding, is_full);
  const bool has_window = config.window > 0 && std::ranges::find(is_full, false) != is_full.end();
  if (!has_window && config.window == 0 && in.find("layer_types") != nullptr && is_by_types(rule) &&
      std::ranges::find(is_full, false) != is_full.end()) {
    in.refuse("layer_types", "names layers with a window, but there is no sliding_window in use",
              "correct the file: set sliding_window, and use_sliding_window to true");
  }
  if (!has_window) config.window = 0;
  config.full_layers = has_window ? LayerSet::of(is_full) : LayerSet();
}

void write_window(const ModelConfig& config, WindowRule rule, Json& out) {
  if (has_use_flag(rule)) out["use_sliding_window"] = config.window > 0;
  out["sliding_window"] = config.window == 0 ? Json() : Json(config.window);
  if (!is_by_types(rule) || (rule == WindowRule::types_or_all && config.full_layers == LayerSet())) return;
  Json types = Json::array();
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    types.push_back(config.window_of(layer) == 0 ? kFull : kSliding);
  }
  out["layer_types"] = types;
  if (rule == WindowRule::types_if_used || rule == WindowRule::types_early) out["max_window_layers"] = config.layers;
}

}  // namespace

ConfigColumn rope(RopeKeys keys) {
  return {[=](const ConfigReader& in, ModelConfig& config) { read_rope(in, keys, config); },
          [=](const ModelConfig& config, Json& out) { write_rope(config, keys, out); }};
}

ConfigColumn window(WindowRule rule, int64_t absent) {
  return {[=](const ConfigReader& in, ModelConfig& config) { read_window(in, rule, absent, config); },
          [=](const ModelConfig& config, Json& out) { write_window(config, rule, out); }};
}

}  // namespace caravan::columns

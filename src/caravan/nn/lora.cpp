#include "caravan/nn/lora.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/pattern.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

constexpr const char* kAdapter = ".lora.";
constexpr std::string_view kMagnitude = ".lora.magnitude";
const std::vector<std::string> kSavable{"embedding", "head"};

[[noreturn]] void refuse_lora(std::string_view key, std::string fact, std::string action) {
  throw UsageError({"model", fmt::format("lora.{}", key), std::move(fact), "", std::move(action)});
}

bool is_target(const std::string& target, const std::string& layer) {
  return matches_pattern(target, layer) || matches_pattern("*." + target, layer);
}

bool can_be_target(const ModelConfig& config, const LinearShape& layer) {
  return layer.experts == 0 || config.lora.experts;
}

void add_mlp(std::vector<LinearShape>& layers, const ModelConfig& config, const std::string& name, int64_t hidden,
             int64_t experts = 0) {
  if (config.arch.is_gated) layers.push_back({name + ".gate", config.width, hidden, experts});
  layers.push_back({name + ".up", config.width, hidden, experts});
  layers.push_back({name + ".down", hidden, config.width, experts});
}

/// The linear layers of one block.
std::vector<LinearShape> layers_of_block(const ModelConfig& config, int64_t block) {
  std::vector<LinearShape> layers{{"attention.query", config.width, config.query_width()},
                                  {"attention.key", config.width, config.kv_width()},
                                  {"attention.value", config.width, config.kv_width()},
                                  {"attention.output", config.query_width(), config.width}};
  if (config.has_encoder() && !config.is_of_encoder(block)) {
    layers.insert(layers.end(), {{"cross_attention.query", config.width, config.query_width()},
                                 {"cross_attention.key", config.width, config.kv_width()},
                                 {"cross_attention.value", config.width, config.kv_width()},
                                 {"cross_attention.output", config.query_width(), config.width}});
  }
  const MoeConfig& moe = config.moe;
  if (!config.has_experts(block)) add_mlp(layers, config, "mlp", config.dense_width());
  if (config.has_experts(block)) add_mlp(layers, config, "mlp.experts", config.hidden_width(), moe.experts);
  if (config.has_experts(block) && moe.has_shared()) add_mlp(layers, config, "mlp.shared", moe.shared_hidden);
  return layers;
}

}  // namespace

std::string LinearShape::factor(char which) const {
  if (experts == 0) return fmt::format("{}.lora.{}.weight", name, which);
  return fmt::format("{}.lora.{}.{}", parent(), own_name(), which);
}

std::vector<LinearShape> linear_layers(const ModelConfig& config) {
  std::vector<LinearShape> layers;
  for (int64_t block = 0; block < config.layers; ++block) {
    for (LinearShape& layer : layers_of_block(config, block)) {
      layer.name = fmt::format("blocks.{}.{}", block, layer.name);
      layers.push_back(std::move(layer));
    }
  }
  return layers;
}

std::vector<LinearShape> adapted_layers(const ModelConfig& config) {
  if (!config.lora.is_used()) return {};
  std::vector<LinearShape> layers = linear_layers(config);
  std::erase_if(layers, [&](const LinearShape& layer) {
    if (!can_be_target(config, layer)) return true;
    return std::ranges::none_of(config.lora.targets, [&](const auto& target) { return is_target(target, layer.name); });
  });
  return layers;
}

bool has_adapter(const ModelConfig& config, std::string_view name) {
  const std::string ending = "." + std::string(name);
  return std::ranges::any_of(adapted_layers(config), [&](const auto& layer) { return layer.name.ends_with(ending); });
}

namespace {

/// `most`: matrices of a table that count.
int64_t adapter_parameters(const ModelConfig& config, int64_t most) {
  int64_t elements = 0;
  for (const LinearShape& layer : adapted_layers(config)) {
    const int64_t of_matrix = config.lora.rank * (layer.in + layer.out) + (config.lora.dora ? layer.out : 0);
    elements += std::min(layer.matrices(), most) * of_matrix;
  }
  return elements;
}

}  // namespace

int64_t adapter_parameters(const ModelConfig& config) {
  return adapter_parameters(config, std::max<int64_t>(config.moe.experts, 1));
}

int64_t adapter_parameters_of_token(const ModelConfig& config) {
  return adapter_parameters(config, config.moe.is_used() ? config.moe.top_k : 1);
}

bool is_of_adapter(std::string_view parameter) { return parameter.find(kAdapter) != std::string_view::npos; }

bool is_saved_with_adapters(const ModelConfig& config, std::string_view parameter) {
  if (config.classes > 0 && config.is_of_head(parameter)) return true;
  if (parameter == "embedding.token.weight") return config.lora.saves("embedding");
  return parameter == "head.weight" && config.lora.saves("head");
}

std::string weight_of_magnitude(std::string_view parameter) {
  if (!parameter.ends_with(kMagnitude)) return "";
  return std::string(parameter.substr(0, parameter.size() - kMagnitude.size())) + ".weight";
}

namespace {

void check_saved(const ModelConfig& config) {
  const LoraConfig& lora = config.lora;
  for (const std::string& module : lora.saved) {
    if (std::ranges::find(kSavable, module) == kSavable.end()) {
      refuse_lora("modules_to_save", fmt::format("'{}' is no module that can be trained whole", module),
                  fmt::format("use '{}'; there are {}", nearest(module, kSavable), join(kSavable)));
    }
    if (std::ranges::count(lora.saved, module) > 1) {
      refuse_lora("modules_to_save", fmt::format("names '{}' twice", module), "name it once");
    }
  }
  if (lora.saves("head") && config.classes > 0) {
    refuse_lora("modules_to_save", "names the head, but a head of classes is trained in any case",
                "leave \"head\" out");
  }
  if (lora.saves("head") && config.has_transform()) {
    refuse_lora("modules_to_save", "names the head, which is one of masked tokens, with layers of its own",
                "leave \"head\" out");
  }
  if (lora.saves("embedding") && config.has_encoder()) {
    refuse_lora("modules_to_save", "names the embedding, which transformers has once for an encoder and its decoder",
                "leave \"embedding\" out");
  }
  if (config.ties_head() && lora.saves("head") != lora.saves("embedding")) {
    refuse_lora(
        "modules_to_save",
        fmt::format("names the {}, but embedding and head are one table (model.tie_embeddings)",
                    lora.saves("head") ? "head" : "embedding"),
        config.has_transform() || config.has_encoder() ? "leave it out" : "name both: [\"embedding\", \"head\"]");
  }
}

/// A token's place among those of its expert depends on the layout, and so would the masks of dropout.
void check_experts_of_lora(const ModelConfig& config) {
  const std::vector<LinearShape> adapted = adapted_layers(config);
  const auto table = std::ranges::find_if(adapted, [](const LinearShape& layer) { return layer.experts > 0; });
  if (table == adapted.end()) return;
  const auto refuse_for_experts = [&](const char* key, const char* what, const char* value) {
    refuse_lora(key, fmt::format("lora.targets chooses {}, and adapters of experts have no {}", table->name, what),
                fmt::format("use lora.{} = {}; or lora.experts = false, as in a run of an earlier version; or targets "
                            "without experts, such as [\"attention.*\"]",
                            key, value));
  };
  if (config.lora.dropout > 0) refuse_for_experts("dropout", "dropout", "0");
  if (config.lora.dora) refuse_for_experts("dora", "magnitudes", "false");
}

}  // namespace

void check_lora(const ModelConfig& config) {
  const LoraConfig& lora = config.lora;
  if (lora.rank < 0 || lora.rank > 1 << 16) {
    refuse_lora("rank", fmt::format("{} is not between 0 and {}", lora.rank, 1 << 16), "a usual value is 8");
  }
  if (!lora.is_used()) return;
  if (!std::isfinite(lora.alpha) || lora.alpha <= 0) {
    refuse_lora("alpha", fmt::format("{} is not above 0", lora.alpha), "a usual value is twice the rank");
  }
  if (!std::isfinite(lora.dropout) || lora.dropout < 0 || lora.dropout >= 1) {
    refuse_lora("dropout", fmt::format("{} is not in [0, 1)", lora.dropout), "a usual value is 0.05");
  }
  check_saved(config);
  if (lora.targets.empty())
    refuse_lora("targets", "chooses no layer", "use [\"query\", \"value\"], or [\"*\"] for all");
  const std::vector<LinearShape> layers = linear_layers(config);
  for (const std::string& target : lora.targets) {
    const auto is_chosen = [&](const LinearShape& layer) { return is_target(target, layer.name); };
    const auto is_left_out = [&](const LinearShape& layer) { return !can_be_target(config, layer); };
    if (std::ranges::any_of(layers, [&](const auto& of) { return is_chosen(of) && !is_left_out(of); })) continue;
    if (std::ranges::any_of(layers, is_chosen)) {
      refuse_lora("targets", fmt::format("'{}' matches experts alone, and lora.experts is false", target),
                  "use lora.experts = true, or leave the target out");
    }
    std::vector<std::string> names;
    for (const LinearShape& layer : layers_of_block(config, config.layers - 1)) {
      if (is_left_out(layer)) continue;
      names.push_back(layer.name.substr(layer.name.rfind('.') + 1));
      names.push_back(layer.name);
    }
    refuse_lora("targets", fmt::format("'{}' matches no linear layer", target),
                fmt::format("the nearest is '{}'; a block has {}", nearest_pattern(target, names), join(names)));
  }
  check_experts_of_lora(config);
}

}  // namespace caravan

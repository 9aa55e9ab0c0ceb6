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

[[noreturn]] void refuse_lora(std::string_view key, std::string fact, std::string action) {
  throw UsageError({"model", fmt::format("lora.{}", key), std::move(fact), "", std::move(action)});
}

bool is_target(const std::string& target, const std::string& layer) {
  return matches_pattern(target, layer) || matches_pattern("*." + target, layer);
}

void add_mlp(std::vector<LinearShape>& layers, const ModelConfig& config, const std::string& name, int64_t hidden) {
  if (config.arch.is_gated) layers.push_back({name + ".gate", config.width, hidden});
  layers.push_back({name + ".up", config.width, hidden});
  layers.push_back({name + ".down", hidden, config.width});
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
  if (config.has_experts(block) && moe.has_shared()) add_mlp(layers, config, "mlp.shared", moe.shared_hidden);
  return layers;
}

}  // namespace

std::vector<LinearShape> linear_layers(const ModelConfig& config) {
  std::vector<LinearShape> layers;
  for (int64_t block = 0; block < config.layers; ++block) {
    for (LinearShape& layer : layers_of_block(config, block)) {
      layers.push_back({fmt::format("blocks.{}.{}", block, layer.name), layer.in, layer.out});
    }
  }
  return layers;
}

std::vector<LinearShape> adapted_layers(const ModelConfig& config) {
  if (!config.lora.is_used()) return {};
  std::vector<LinearShape> layers = linear_layers(config);
  std::erase_if(layers, [&](const LinearShape& layer) {
    return std::ranges::none_of(config.lora.targets, [&](const auto& target) { return is_target(target, layer.name); });
  });
  return layers;
}

bool has_adapter(const ModelConfig& config, std::string_view name) {
  const std::string ending = "." + std::string(name);
  return std::ranges::any_of(adapted_layers(config), [&](const auto& layer) { return layer.name.ends_with(ending); });
}

int64_t adapter_parameters(const ModelConfig& config) {
  int64_t elements = 0;
  for (const LinearShape& layer : adapted_layers(config)) elements += config.lora.rank * (layer.in + layer.out);
  return elements;
}

bool is_of_adapter(std::string_view parameter) { return parameter.find(kAdapter) != std::string_view::npos; }

bool is_saved_with_adapters(const ModelConfig& config, std::string_view parameter) {
  return config.classes > 0 && config.is_of_head(parameter);
}

void check_lora(const ModelConfig& config) {
  const LoraConfig& lora = config.lora;
  if (lora.rank < 0 || lora.rank > 1 << 16) {
    refuse_lora("rank", fmt::format("{} is not between 0 and {}", lora.rank, 1 << 16), "a usual value is 8");
  }
  if (!lora.is_used()) return;
  if (!std::isfinite(lora.alpha) || lora.alpha <= 0) {
    refuse_lora("alpha", fmt::format("{} is not above 0", lora.alpha), "a usual value is twice the rank");
  }
  if (lora.targets.empty())
    refuse_lora("targets", "chooses no layer", "use [\"query\", \"value\"], or [\"*\"] for all");
  const std::vector<LinearShape> layers = linear_layers(config);
  for (const std::string& target : lora.targets) {
    if (std::ranges::any_of(layers, [&](const auto& layer) { return is_target(target, layer.name); })) continue;
    std::vector<std::string> names;
    for (const LinearShape& layer : layers_of_block(config, config.layers - 1)) {
      names.push_back(layer.name.substr(layer.name.rfind('.') + 1));
      names.push_back(layer.name);
    }
    refuse_lora("targets", fmt::format("'{}' matches no linear layer", target),
                fmt::format("the nearest is '{}'; a block has {}", nearest_pattern(target, names), join(names)));
  }
}

}  // namespace caravan

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/nn/config.h"

namespace caravan {

/// Which layers have adapters; without torch.

struct LinearShape {
  std::string name;  ///< of the module, "blocks.0.attention.query", or of a table of experts, "blocks.0.mlp.experts.up"
  int64_t in = 0;
  int64_t out = 0;
  int64_t experts = 0;  ///< of a table: each has a matrix [out, in], and an adapter; 0: a module

  /// "blocks.0.mlp.experts" and "up".
  std::string parent() const { return name.substr(0, name.rfind('.')); }
  std::string own_name() const { return name.substr(name.rfind('.') + 1); }
  int64_t matrices() const noexcept { return experts > 0 ? experts : 1; }
  /// The parameters of the layer and of its adapter: "blocks.0.attention.query.weight" and "..query.lora.a.weight"; of
  /// a table "blocks.0.mlp.experts.up" and "blocks.0.mlp.experts.lora.up.a". A table has no magnitudes.
  std::string weight() const { return experts > 0 ? name : name + ".weight"; }
  std::string factor(char which) const;
  std::string magnitudes() const { return name + ".lora.magnitude"; }
};

/// The linear layers of all blocks, in forward order, without embedding and head.
std::vector<LinearShape> linear_layers(const ModelConfig& config);

/// The layers chosen by config.lora; none without adapters.
std::vector<LinearShape> adapted_layers(const ModelConfig& config);
/// Whether the layer `name` within a block, "attention.query", has an adapter in any of the blocks.
bool has_adapter(const ModelConfig& config, std::string_view name);

/// Number of parameters of all adapters, magnitudes included.
int64_t adapter_parameters(const ModelConfig& config);
/// How many of them compute with one token: of experts, those of moe.top_k.
int64_t adapter_parameters_of_token(const ModelConfig& config);
/// Whether a parameter of this name belongs to an adapter.
bool is_of_adapter(std::string_view parameter);
/// Whether it is trained with the adapters without being one: of a head of classes, which no base model has, or of one
/// of LoraConfig::saved.
bool is_saved_with_adapters(const ModelConfig& config, std::string_view parameter);

/// For the magnitude of an adapter: the name of the weight of its layer; "" for another parameter.
std::string weight_of_magnitude(std::string_view parameter);

/// Throws UsageError for an impossible rank, alpha or dropout, and for a target or saved module that the model does not
/// have, naming the nearest; and for dropout and magnitudes of experts, which have neither.
void check_lora(const ModelConfig& config);

}  // namespace caravan

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/nn/config.h"

namespace caravan {

/// Which layers have adapters; without torch.

struct LinearShape {
  std::string name;  ///< of the module: "blocks.0.attention.query"
  int64_t in = 0;
  int64_t out = 0;
};

/// The linear layers of all blocks, in forward order, without experts, embedding and head.
std::vector<LinearShape> linear_layers(const ModelConfig& config);

/// The layers chosen by config.lora; none without adapters.
std::vector<LinearShape> adapted_layers(const ModelConfig& config);
/// Whether the layer `name` within a block, "attention.query", has an adapter in any of the blocks.
bool has_adapter(const ModelConfig& config, std::string_view name);

/// Number of parameters of all adapters, magnitudes included.
int64_t adapter_parameters(const ModelConfig& config);
/// Whether a parameter of this name belongs to an adapter.
bool is_of_adapter(std::string_view parameter);
/// Whether it is trained with the adapters without being one: of a head of classes, which no base model has, or of one
/// of LoraConfig::saved.
bool is_saved_with_adapters(const ModelConfig& config, std::string_view parameter);

/// For the magnitude of an adapter: the name of the weight of its layer; "" for another parameter.
std::string weight_of_magnitude(std::string_view parameter);

/// Throws UsageError for an impossible rank, alpha or dropout, and for a target or saved module that the model does not
/// have, naming the nearest.
void check_lora(const ModelConfig& config);

}  // namespace caravan

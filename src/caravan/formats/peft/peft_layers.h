#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "caravan/nn/config.h"

namespace caravan {

// The layers and tensors of Hugging Face's PEFT.

/// "q_proj" of "model.layers.0.self_attn.q_proj".
inline std::string last_name(const std::string& name) { return name.substr(name.rfind('.') + 1); }

/// A linear layer of Hugging Face, and the layers of Model that it fuses: three for GPT-2's c_attn. Or a parameter that
/// has a matrix for each expert (target_parameters of PEFT), and the tables of experts that it fuses.
struct PeftLayer {
  std::string theirs;  ///< "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.experts.gate_up_proj"
  std::vector<std::string> ours;
  std::string module;   ///< in the names of tensors: of parameters "model.layers.0.mlp.experts.base_layer"
  int64_t experts = 0;  ///< of a parameter; 0: a layer
};
/// The linear layers of the model, in forward order, without those that Hugging Face has head by head in one layer
/// (query_key_value of GPT-NeoX), and the parameters of experts that have adapters. Throws UsageError for a model that
/// transformers does not have.
std::vector<PeftLayer> peft_layers(const ModelConfig& config);
/// Whether PEFT takes a target of this name for one of experts, as transformers 4 named them: it then drops the layer
/// from target_modules. So such a layer, of a dense block of qwen3_moe, is named by its weight, in target_parameters.
bool peft_names_by_weight(const ModelConfig& config, const PeftLayer& layer);
/// Throws UsageError if a layer that is not among them has an adapter, and for DoRA of one that PEFT has no DoRA of.
void check_peft_layers(const ModelConfig& config);

/// A parameter that is saved whole beside the adapters (is_saved_with_adapters). An embedding and a head that are one
/// table are two of them, with the same values.
struct PeftWhole {
  std::string theirs;  ///< "base_model.model.score.weight"
  std::string ours;
  std::string module;   ///< what modules_to_save calls it: "score"
  std::string saved{};  ///< what LoraConfig::saved calls it; "": a head of classes
};
std::vector<PeftWhole> peft_wholes(const ModelConfig& config);

/// The Hugging Face names of tensors A and B of a layer (PeftLayer::module), and of its magnitudes.
std::string peft_tensor(const std::string& module, char factor);
std::string peft_magnitudes(const std::string& module);

inline constexpr char kPeftVector = 'm';  ///< beside the factors A and B
/// The layer for which a tensor is the factor A or B, or has the magnitudes; nothing for another name.
std::optional<std::pair<std::string, char>> parse_peft_tensor(std::string_view name);
/// Whether it is of one of the experts, "..mlp.experts.3.gate_proj..", each of which was a module in transformers 4.
bool is_of_single_expert(std::string_view name);

}  // namespace caravan

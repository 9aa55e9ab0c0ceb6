#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "caravan/nn/config.h"

namespace caravan {

// Adapters in the format of Hugging Face's PEFT: a folder with adapter_config.json and adapter_model.safetensors.

inline constexpr const char* kPeftConfig = "adapter_config.json";
inline constexpr const char* kPeftWeights = "adapter_model.safetensors";

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
/// Throws UsageError if a layer that is not among them has an adapter.
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
/// How many classes the head in a folder of adapters tells apart, of a base model like this one; 0: it has none.
int64_t peft_classes(const std::filesystem::path& folder, ModelConfig base);

/// The scale of one layer's adapter.
struct PeftScale {
  std::string theirs;
  double scale = 1;
};
struct PeftConfig {
  LoraConfig lora;  ///< the largest rank; its scale is that of layers not named in adapter_config.json
  std::vector<PeftScale> layers;
  std::vector<PeftWhole> wholes{};  ///< those of peft_wholes that the folder has
};

/// Reads which layers of `model` have adapters, from the configuration and the names and shapes of the weights. Throws
/// DataError naming file and key for what is missing, damaged, of another model, or not supported: other methods than
/// LoRA and DoRA (trained biases, or whole modules other than embedding and head, a key that is not known), adapters
/// that have changed the weights of their base (PiSSA, OLoRA, CorDA, LoftQ), and an embedding without the head that it
/// is tied to.
PeftConfig read_peft_config(const std::filesystem::path& folder, const ModelConfig& model);

/// The adapter_config.json of the adapters of `config`.
std::string peft_config(const ModelConfig& config, const std::string& base_model);

/// The Hugging Face names of tensors A and B of a layer (PeftLayer::module), and of its magnitudes.
std::string peft_tensor(const std::string& module, char factor);
std::string peft_magnitudes(const std::string& module);

}  // namespace caravan

#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "caravan/formats/peft/peft_layers.h"
#include "caravan/nn/config.h"

namespace caravan {

// Adapters in the format of Hugging Face's PEFT: a folder with adapter_config.json and adapter_model.safetensors.

inline constexpr const char* kPeftConfig = "adapter_config.json";
inline constexpr const char* kPeftWeights = "adapter_model.safetensors";

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

}  // namespace caravan

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "caravan/nn/config.h"

namespace caravan {

/// The model types of transformers that Model computes.
enum class HuggingfaceForm : uint8_t { gpt2, llama, qwen2, mixtral, qwen2_moe };

/// Its model_type.
std::string_view name(HuggingfaceForm form) noexcept;
/// The form of this model_type; nothing for an unknown one.
std::optional<HuggingfaceForm> huggingface_form(std::string_view model_type) noexcept;

/// The form with the logits of this model. Ignores settings that matter only in training: moe.balance, moe.z_loss,
/// moe.capacity. Throws UsageError naming the setting that no form has, and the nearest form.
HuggingfaceForm huggingface_form(const ModelConfig& config);

}  // namespace caravan

#pragma once

#include <string>
#include <string_view>

#include "caravan/formats/huggingface/hf_config.h"

namespace caravan {

/// The text in which a checkpoint stores the config of its model, even if transformers does not have the model: a JSON
/// object of model_type, the special tokens as a config.json has them, and a member `settings` with all settings by the
/// names of recipe keys.
std::string config_text(const ModelConfig& config, const SpecialTokens& tokens = {});

/// The config that config_text wrote, in this version or an earlier one, or a config.json. Earlier ones are a
/// config.json with members `moe` and `lora`, or have a `lora` without `experts`, where experts have no adapters. Its
/// special tokens are those of parse_special_tokens. Throws DataError like parse_huggingface_config.
ModelConfig parse_config_text(std::string_view json, std::string_view file);

}  // namespace caravan

#pragma once

#include <filesystem>

#include "caravan/data/tokenizer.h"
#include "caravan/nn/hf_config.h"
#include "caravan/nn/hf_names.h"

namespace caravan {

/// A model as a Hugging Face folder holds it, under our names.
struct HuggingFaceModel {
  ModelConfig config;
  NamedTensors parameters;  ///< fp32, whole, in the order of Model::parameters()
  Tokenizer tokenizer;
};

/// Reads config.json, model.safetensors (or the shards of model.safetensors.index.json) and tokenizer.json of a GPT-2
/// or Llama. Weights of bf16 and fp16 become fp32. Throws DataError naming file and key for what is missing, damaged,
/// or would make another model of it.
HuggingFaceModel read_huggingface(const std::filesystem::path& folder);

/// Writes config.json, model.safetensors, tokenizer.json and tokenizer_config.json, which transformers loads with the
/// same logits. `parameters`: whole, under our names. Makes the folder; throws ResourceError.
void write_huggingface(const std::filesystem::path& folder, const ModelConfig& config, const NamedTensors& parameters,
                       const Tokenizer& tokenizer);

/// What a config.json says of the tokenizer's special tokens.
SpecialTokens special_tokens(const Tokenizer& tokenizer);

}  // namespace caravan

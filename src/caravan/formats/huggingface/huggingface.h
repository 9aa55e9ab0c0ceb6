#pragma once

#include <filesystem>

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/formats/huggingface/hf_names.h"
#include "caravan/formats/huggingface/text_settings.h"
#include "caravan/formats/huggingface/weights.h"

namespace caravan {

/// The contents of a Hugging Face model folder, under Caravan's parameter names.
struct HuggingFaceModel {
  ModelConfig config;
  NamedTensors parameters;  ///< fp32, whole, in the order of Model::parameters()
  Tokenizer tokenizer;
  TextSettings text;
};

/// The same with the weights in their files.
struct HuggingfaceFolder {
  ModelConfig config;
  Tokenizer tokenizer;
  TextSettings text;
  HuggingfaceWeights weights;
  ContentHash identity;  ///< of config.json and weights.fingerprint()
};

/// Opens a folder as read_huggingface does, and reads no weights.
HuggingfaceFolder open_huggingface(const std::filesystem::path& folder);

/// Reads config.json, model.safetensors (or the shards of model.safetensors.index.json), tokenizer.json and the files
/// of TextSettings, for a model type of architectures(). bf16 and fp16 weights become
/// fp32. Throws DataError naming file and key for what is missing, damaged or not supported.
HuggingFaceModel read_huggingface(const std::filesystem::path& folder);

/// Writes a folder that transformers loads with the same logits: config.json, model.safetensors, tokenizer.json,
/// tokenizer_config.json and the files of `text`. `parameters`: whole, under Caravan's names. Creates the folder, or
/// replaces the model in it: its previous versions of these files and its weight shards are removed. Throws
/// ResourceError. Throws UsageError, before it writes anything, for a model that transformers does not have
/// (architecture_of).
void write_huggingface(const std::filesystem::path& folder, const ModelConfig& config, const NamedTensors& parameters,
                       const Tokenizer& tokenizer, const TextSettings& text);

}  // namespace caravan

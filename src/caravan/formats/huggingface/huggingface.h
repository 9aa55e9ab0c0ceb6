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

/// What a caller that does not need the head of a folder's model accepts.
struct OpenedHead {
  bool may_be_missing = false;  ///< of a base model, saved without a head
  int64_t new_classes = 0;      ///< above 0, for a model without classes: read it as one with so many
};
/// Opens a folder as read_huggingface does, and reads no weights.
HuggingfaceFolder open_huggingface(const std::filesystem::path& folder, const OpenedHead& head = {});

/// Reads config.json, model.safetensors (or the shards of model.safetensors.index.json), tokenizer.json and the files
/// of TextSettings, for a model type of architectures(). bf16 and fp16 weights become
/// fp32. Throws DataError naming file and key for what is missing, damaged or not supported.
/// Also for a base model, unless its head may be missing: its parameters are then left out.
HuggingFaceModel read_huggingface(const std::filesystem::path& folder, bool may_lack_head = false);

/// Throws DataError for a folder whose model lacks the head that it is needed for, of which `missing` is a parameter.
[[noreturn]] void refuse_base_model(const std::filesystem::path& folder, const std::string& missing);

/// Writes a folder that transformers loads with the same logits: config.json, model.safetensors, tokenizer.json,
/// tokenizer_config.json and the files of `text`. `parameters`: whole, under Caravan's names. Creates the folder, or
/// replaces the model in it: its previous versions of these files and its weight shards are removed. Throws
/// ResourceError. Throws UsageError, before it writes anything, for a model that transformers does not have
/// (architecture_of).
void write_huggingface(const std::filesystem::path& folder, const ModelConfig& config, const NamedTensors& parameters,
                       const Tokenizer& tokenizer, const TextSettings& text);

}  // namespace caravan

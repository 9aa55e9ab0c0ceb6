#pragma once

#include <filesystem>
#include <string>

#include "caravan/formats/huggingface/hf_config.h"
#include "caravan/recipe/recipe.h"

namespace caravan {

/// The model that a run starts from (train.init_from): a checkpoint, or a Hugging Face folder.
struct InitSource {
  std::filesystem::path folder;
  bool is_huggingface = false;
  ModelConfig model;
  SpecialTokens tokens;
  std::filesystem::path text;       ///< the folder with its tokenizer.json and text settings
  bool keeps_head = true;           ///< what its head says is what the run learns: the next token, or the same classes
  std::filesystem::path adapter{};  ///< a folder with separate adapters, in PEFT's format; "": none
};

/// Reads the config of a run's newest checkpoint, a checkpoint, or a Hugging Face folder. Throws DataError for what is
/// missing, damaged or not supported.
InitSource read_init_source(const std::filesystem::path& path);

/// The source given by train.init_from and lora.adapter.
InitSource init_source(const Recipe& recipe);

/// The folder of the reference model of data.task = "preference": preference.reference, else train.init_from. "" where
/// there is neither, and for adapters without the former: then it is the weights under them.
std::string reference_folder(const Recipe& recipe);

/// Looks train.init_from up in the current folder and then beside the recipe, and takes from it what the recipe does
/// not give: the model's keys and the tokenizer. The key becomes the absolute path. Throws UsageError for a key that
/// contradicts the weights, naming both values; contexts, dropout, classes and losses of experts may differ, and
/// adapters may be added. A model that classifies texts gets classes. preference.reference and lora.adapter are looked
/// up in the same way, and the latter gives the rank, alpha and targets of the adapters.
void apply_init_from(Recipe& recipe, const std::filesystem::path& recipe_folder);

}  // namespace caravan

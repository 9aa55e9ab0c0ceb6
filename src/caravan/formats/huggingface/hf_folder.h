#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "caravan/nn/config.h"

namespace caravan {

/// Throws DataError: what is wrong with a file of a Hugging Face folder, and what to do.
[[noreturn]] void refuse_import(const std::filesystem::path& file, const std::string& fact, const std::string& action);

/// The names of the files of weights in a Hugging Face folder: model.safetensors, or the shards that
/// model.safetensors.index.json lists. Throws DataError if there is none, or the index is damaged.
std::set<std::string> weight_files(const std::filesystem::path& folder);

/// The tokenizer.json of a folder. Throws DataError if there is none.
std::filesystem::path tokenizer_file(const std::filesystem::path& folder);

/// The model of a folder: that of config.json (parse_huggingface_config, which names what it throws). As in
/// transformers 5, a head is not tied, whatever the file says, if the weights have one that begins with other values
/// than the embedding: that is how T5 v1.1 is saved there.
ModelConfig read_huggingface_config(const std::filesystem::path& folder);

}  // namespace caravan

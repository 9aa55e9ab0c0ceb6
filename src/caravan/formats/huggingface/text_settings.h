#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/formats/huggingface/hf_config.h"
#include "caravan/formats/huggingface/hf_generation.h"

namespace caravan {

/// The name of the file of the settings of generation in a folder of Hugging Face, and in a run.
inline constexpr const char* kGenerationConfigFile = "generation_config.json";

/// The settings of a Hugging Face folder for text, apart from tokenizer.json. Import stores them in the run folder and
/// export writes them back.
struct TextSettings {
  SpecialTokens tokens;                      ///< of config.json
  std::map<std::string, std::string> files;  ///< name to content, byte for byte; see read_text_files

  /// The settings that generation uses by default. Throws DataError for a damaged generation_config.json.
  GenerationConfig generation() const;
};

/// The special tokens of a model trained here: its tokenizer's end-of-text token both begins and ends a text.
SpecialTokens special_tokens(const Tokenizer& tokenizer);

/// Reads those of generation_config.json, tokenizer_config.json, special_tokens_map.json and chat_template.jinja that
/// exist in `folder`.
std::map<std::string, std::string> read_text_files(const std::filesystem::path& folder);

/// Those that belong to the tokenizer in `folder`: all but generation_config.json.
std::map<std::string, std::string> read_tokenizer_files(const std::filesystem::path& folder);

/// Writes `files` and, if it is not among them, a tokenizer_config.json that names the special tokens and what `model`
/// takes of a text: Tokenizer::load and transformers read it there. Removes the other files of read_text_files. Throws
/// ResourceError.
void write_text_files(const std::filesystem::path& folder, const std::map<std::string, std::string>& files,
                      const Tokenizer& tokenizer, const ModelConfig& model);

}  // namespace caravan

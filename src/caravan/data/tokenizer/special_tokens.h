#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace caravan {

/// The special tokens that the tokenizer_config.json in `folder` names, and, where it names none, its
/// special_tokens_map.json: texts by key, such as "mask_token". Both files may be missing. Throws DataError for files
/// that are damaged.
std::map<std::string, std::string> read_special_tokens(const std::filesystem::path& folder);

/// Throws DataError if `path` is, or is missing beside, a model of SentencePiece, which has to be converted.
void refuse_sentencepiece(const std::filesystem::path& path);

}  // namespace caravan

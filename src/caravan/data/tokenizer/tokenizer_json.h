#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/base/json_reader.h"
#include "caravan/data/tokenizer/added_tokens.h"
#include "caravan/data/tokenizer/bpe_model.h"
#include "caravan/data/tokenizer/pre_tokenizer.h"

namespace caravan {

/// The content of a tokenizer.json file, as far as it determines ids.
struct TokenizerParts {
  bool is_nfc = false;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  std::vector<AddedToken> added_tokens;
  std::vector<int32_t> prefix;  ///< ids added before a text by add_special_tokens
  std::vector<int32_t> suffix;
};

/// Reads a Hugging Face tokenizer.json with byte-level BPE. `file` names it in errors. Throws DataError with the JSON
/// path for every unsupported setting that could change an id; none is ignored.
TokenizerParts read_tokenizer_json(std::string_view json, std::string_view file);

/// The pre_tokenizer of the file: ByteLevel, or a Sequence of Split and Digits that ends with ByteLevel.
PreTokenizer read_pre_tokenizer(const JsonReader& json);

struct WrittenTokenizer {
  std::vector<std::string> tokens;  ///< by id, as bytes; the special token as text
  std::vector<BpeModel::Merge> merges;
  std::optional<int32_t> special_id;  ///< of tokens
  bool cuts_words = true;             ///< splits by GPT-2's pattern; else a text is one word
};
/// A tokenizer.json that `tokenizers` and `transformers` load.
std::string write_tokenizer_json(const WrittenTokenizer& tokenizer);

}  // namespace caravan
